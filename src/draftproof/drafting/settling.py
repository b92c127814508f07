"""A step is settled: what became of the drafts of a text, what it cost and what it brought."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.account import LATELY
from draftproof.drafting.sources import SOON, Source
from draftproof.drafting.step import Step
from draftproof.drafting.text import Text
from draftproof.tree import TokenTree


def settle(text: Text, sources: Sequence[Source], one: float) -> float:
    """Learn from the tokens written since the last step, or since several plain ones.

    Those in which no source was looked at, because the request wanted none, are among them. What
    native code drafted was learnt from before (`LookUps.learn`).

    Returns what it brought forward beyond a plain one, in passes over one row, glances paid.
    """
    request, step, glanced = text.request, text.step, text.glanced
    if text.guesses:
        learn_guesses(text, sources)
    written = request.tokens[text.length :]
    text.length, text.spent = text.length + len(written), 0.0
    if not written:  # its step is made again
        text.step = Step(why=step.why)
        return 0.0
    decisions = request.decisions
    steps = max(1, request.passes - text.passes)  # an interrupt may keep a pass from being counted
    text.passes = request.passes
    unasked, text.unasked = decisions.unasked - text.unasked, decisions.unasked
    text.steps += steps
    ran = len(step.kept) > 1 and steps > unasked  # else its pass was to no avail, and made again
    asked = step.only >= 0 or step.looks is not None or step.offer is not None or step.offered
    if asked and step.only < 0:
        _learn(text, sources, written)
    owners = step.owners(written) if ran else []
    for owner in {*owners}:
        source, accepted = sources[owner], owners.count(owner)
        decisions.sources[source.name].accepted += accepted
        source.funds.earn(accepted * step.worth)
    by_token = decisions.by_token
    by_token += [sources[owner].name for owner in owners]
    by_token += [""] * (len(written) - len(owners))
    if plain := steps - unasked - ran:
        decisions.plainly(step.why, plain)
    extra, text.glanced = step.extra + glanced, 0.0
    won = (len(written) - steps) * step.worth
    late = 1 - (1 - LATELY) ** steps
    each = step.texts / step.unit / steps
    text.plain += (1 + won * each - text.plain) * late
    text.taken += (1 + extra * each - text.taken) * late
    text.account.step(extra, won, step.unit, steps)
    text.saved += (won - extra) / step.unit
    decisions.plain_seconds += len(written) * step.unit * one
    decisions.seconds += (steps * step.unit + extra) * one
    text.ran, step.extra = ran, 0.0
    if asked:  # else it is as new but for what every step is told
        text.step = Step(why=step.why)
    return won - glanced


def learn_guesses(text: Text, sources: Sequence[Source]) -> None:
    """From the token that was written where the last glance was."""
    written = text.request.tokens[text.guessed : text.guessed + 1]
    for number, tree in text.guesses if written else ():
        recent = text.recent[number]
        _, text.recent[number] = sources[number].learn(text.request, tree, written, recent)
    text.guesses.clear()


def _learn(text: Text, sources: Sequence[Source], written: Sequence[int]) -> None:
    step, looks = text.step, text.step.looks
    learnt = list(zip(looks.numbers, step.right, strict=True)) if looks is not None else []
    for number, tree in step.offered:
        if len(tree.tokens) > 1:
            source, recent = sources[number], text.recent[number]
            right, text.recent[number] = source.learn(text.request, tree, written, recent)
            learnt.append((number, right))
    for number, right in sorted(learnt):
        if right < 0:
            continue
        text.deep = max(2 * right + 4, text.deep * 3 // 4)
        text.vain[number] = 0.0 if right else text.vain[number] + sources[number].cost
        if right and text.due[number] > text.steps:  # it was only looked at
            text.due[number] = min(text.due[number], text.steps + SOON)
            text.pause[number] = SOON


def planned(text: Text, sources: Sequence[Source]) -> TokenTree:
    """The tree that is about to run."""
    step, decisions = text.step, text.request.decisions
    for number, tree in step.offered:
        decisions.share(sources[number].name).offered += len(tree.tokens) - 1
    root, drafted = text.request.tokens[-1], step.kept[1:]
    if not drafted:
        text.request.planned = (), step.why
        return TokenTree.root(root)
    scored = text.request.watched is not None
    if step.offer is not None:
        owners: Sequence[int] = step.offer.owners
        step.tree = step.offer.tree(step.kept, scored)
    else:
        assert step.looks is not None
        tokens, parents, owners, survivals = step.looks.merged.arrays
        step.tree = TokenTree.of(step.kept, root, tokens, parents, survivals if scored else None)
    own = step.drafted_by = [owners[node] for node in drafted]
    for owner in {*own}:
        decisions.share(sources[owner].name).used += own.count(owner)
    text.request.planned = [sources[owner].name for owner in own], ""
    return step.tree
