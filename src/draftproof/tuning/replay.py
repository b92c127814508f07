"""Fixed settings replayed over recorded texts: every step that an engine would make, no pass made.

How far a draft is accepted at a position is known, so a text is a walk: from each position to the
one behind what is accepted there and the bonus. All settings walk at once, as rows of arrays. In a
batch as many texts walk side by side, and a pass runs the nodes of all. Seconds come from measured
costs. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.profiles import Choice, Part
from draftproof.runners.curves import attended
from draftproof.shapes import choices_to_parents, parents_to_choices
from draftproof.tuning.machine import Array, Machine
from draftproof.tuning.records import ACCEPTED, DEEP, DOUBTS, DRAFTED, LEVELS, NONE, WIDE, Text
from draftproof.tuning.sources import Source, owners_of


@dataclass
class Steps:
    """What a setting did, by groups of texts that were written together: arrays (S, G)."""

    steps: Array
    tokens: Array
    accepted: Array
    drafted: Array
    seconds: Array
    text_steps: Array  # steps of each text, added up

    @property
    def tokens_per_step(self) -> Array:
        """(S,) of a text."""
        found: Array = self.tokens.sum(1) / np.maximum(1, self.text_steps.sum(1))
        return found


class Tape:
    """The texts of one temperature behind one another, and how every setting fares at a position.

    Positions of all texts are numbered through; behind the last of each stands one that is none.
    """

    def __init__(self, texts: Sequence[Text], sources: Sequence[Source]) -> None:
        self.texts, self.sources = texts, list(sources)
        self.begins = np.cumsum([0, *(len(text) for text in texts)])
        self.rooms = np.concatenate([[text.room(at) for at in range(len(text))] for text in texts])
        self.behind = np.concatenate([len(text.prompt) + np.arange(len(text)) for text in texts])
        self._known: dict[tuple[str, str], Array] = {}  # see `_shared`

    def __len__(self) -> int:
        return int(self.begins[-1])

    def fares(self, source: Source, part: Part) -> Array:
        """(3, n): tokens accepted, nodes and levels of a draft at each position."""
        if not source.grows:
            number = source.asis.index(part)
            return np.concatenate([text.asis[source.name][number] for text in self.texts], axis=1)
        given = dict(part.options)
        if "tree" in given:
            return self._tree(source, given["tree"])
        grown = self._grown(source)
        doubt = DOUBTS.index(given.get("min_confidence", 0.0))
        levels = np.minimum(grown[4 + doubt], given["num_draft_tokens"])
        branch = given.get("branch", WIDE)
        second = (grown[0] < levels) & (grown[1] > 0) & (grown[1] < branch)
        accepted = np.minimum(grown[0], levels) + second
        return np.stack([accepted, levels * branch, levels])

    def ranks(self, source: Source) -> Array:
        """(n,): which child of node 0 is right at each position; `NONE`: none of them."""
        ranks: Array = self._grown(source)[2]
        return ranks

    def _grown(self, source: Source) -> Array:
        return np.concatenate([text.grown[source.name] for text in self.texts], axis=1)

    def _tree(self, source: Source, paths: Sequence[Sequence[int]]) -> Array:
        """What a draft model is asked for by ranks: its tree agrees as its first ranks do."""
        parents = choices_to_parents(paths)
        depths = [0, *(len(path) for path in parents_to_choices(parents))]
        kinds = parents_to_choices(parents)
        child = np.full((len(parents) + 1, NONE + 1), -1)  # the last row: nowhere
        numbers = {tuple[int, ...](): 0} | {path: n for n, path in enumerate(kinds, 1)}
        for path in kinds:
            child[numbers[path[:-1]], path[-1]] = numbers[path]
        ranks, deep = self.ranks(source), max(depths)
        levels = np.minimum(np.minimum(self.rooms, deep), self._grown(source)[3]).clip(0)
        ends = np.repeat(self.begins[1:], np.diff(self.begins))
        node: Array = np.zeros(len(self), int)
        accepted: Array = np.zeros(len(self), int)
        for depth in range(deep):
            at = np.arange(len(self)) + depth
            inside = (at < ends) & (depth < levels) & (node >= 0)
            step = child[node, ranks[np.minimum(at, len(self) - 1)]]
            node = np.where(inside, step, -1)
            accepted += node >= 0
        sizes = np.cumsum(np.bincount(depths))[levels] - 1
        return np.stack([accepted, sizes, levels])

    def merged(self, choice: Choice, owners: Sequence[Source]) -> tuple[Array, list[Array]]:
        """(2, n) tokens accepted and nodes of merged trees; and (n,) the levels of each part.

        A node of a merged tree is a node of one of them, with all that stands before it: as many
        tokens are accepted as of the best. What trees have in common counts once; of a shorter
        draft than the recorded one that is what lies no deeper.
        """
        each = [self.fares(o, p) for o, p in zip(owners, choice.parts, strict=True)]
        if not each:
            return np.zeros((2, len(self)), int), []
        whole = np.stack(each).astype(int)
        accepted = whole[:, ACCEPTED].max(0)
        nodes: Array = whole[0, DRAFTED]
        for at in range(1, len(each)):
            again = [self._common(owners, whole, other, at) for other in range(at)]
            nodes = nodes + whole[at, DRAFTED] - np.maximum.reduce(again)
        return np.stack([accepted, nodes]), [one[LEVELS] for one in whole]

    def _common(self, owners: Sequence[Source], whole: Array, one: int, other: int) -> Array:
        """(n,) nodes that two parts of a merged draft have in common."""
        pair = whole[[one, other]]
        by_depth = self._shared(owners[one].name, owners[other].name)
        depth = np.minimum(pair[:, LEVELS].min(0), by_depth.shape[1] - 1)
        alike = by_depth[np.arange(len(self)), depth]
        right = pair[:, ACCEPTED].min(0)
        common: Array = np.minimum(np.maximum(alike, right), pair[:, DRAFTED].min(0))
        return common

    def _shared(self, one: str, other: str) -> Array:
        """(n, depths): nodes of both recorded trees at most so deep."""
        if (one, other) not in self._known:
            rows = []
            for text in self.texts:
                for at in range(len(text)):
                    both = _paths(text, one, at) & _paths(text, other, at)
                    rows.append(np.bincount([len(path) for path in both], minlength=2 * DEEP))
            deepest = max(map(len, rows))
            padded = [np.pad(row, (0, deepest - len(row))) for row in rows]
            self._known[one, other] = np.cumsum(padded, axis=1)
        return self._known[one, other]


def _paths(text: Text, source: str, position: int) -> set[tuple[int, ...]]:
    """The tokens down to each node but node 0."""
    tree = text.trees[source].tree(position, 0)
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
        paths.append((*paths[parent], token))
    return {*paths[1:]}


def groups_of(count: int, batch: int) -> list[range]:
    """Which texts are written together."""
    return [range(at, min(at + batch, count)) for at in range(0, count, batch)]


def replay(
    tape: Tape, choices: Sequence[Choice], machine: Machine, batch: int, more: Array | float = 0.0
) -> Steps:
    """All choices, written in batches of so many texts; the groups of `groups_of`.

    more: (G,) seconds of each group besides, with whatever choice.
    """
    drafting = [owners_of(choice, tape.sources) for choice in choices]
    found = [tape.merged(*each) for each in zip(choices, drafting, strict=True)]
    accepted = np.stack([fares[0] for fares, _ in found])
    nodes = np.stack([fares[1] for fares, _ in found])
    names = sorted({owner.name for each in drafting for owner in each})
    levels = {name: np.zeros((len(choices), len(tape)), np.uint8) for name in names}
    asked = {name: np.zeros(len(choices), bool) for name in names}
    for row, (by, (_, each)) in enumerate(zip(drafting, found, strict=True)):
        for owner, one in zip(by, each, strict=True):
            levels[owner.name][row], asked[owner.name][row] = one, True
    groups = groups_of(len(tape.texts), batch)
    made = [
        _walk(tape, group, accepted, nodes, levels, asked, machine) for group in groups
    ]  # (6, S) each
    steps = Steps(*np.stack(made, axis=2))
    steps.seconds += more
    return steps


def _walk(
    tape: Tape,
    group: range,
    accepted: Array,
    nodes: Array,
    levels: dict[str, Array],
    asked: dict[str, Array],
    machine: Machine,
) -> Array:
    """(6, S): as the fields of `Steps`, of texts that are written side by side."""
    count, texts = len(accepted), np.array(group)
    begins, ends = tape.begins[texts], tape.begins[texts + 1]
    at = np.broadcast_to(begins, (count, len(texts))).copy()  # (S, B) where each is
    steps, right, drafted = (np.zeros(count, int) for _ in range(3))
    text_steps = np.zeros(count, int)
    prompts = [len(tape.texts[number].prompt) - 1 for number in group]
    seconds = np.full(count, machine.reading(prompts))
    for name, mask in asked.items():
        drafting = machine.drafting[name]
        if drafting.passes is not None:
            seconds += mask * Machine(drafting.passes, (0.0, 0.0)).reading(prompts)
    row = np.arange(count)[:, None]
    while (going := at < ends).any():
        here = np.minimum(at, len(tape) - 1)
        # No draft where one token is all that may still be written.
        drafts = going & (tape.rooms[here] > 0)
        more = np.where(drafts, nodes[row, here], 0)
        took = np.where(going, accepted[row, here] + 1, 0)
        rows = np.where(going, 1 + more, 0)
        width = going.sum(1)
        active = width > 0
        accepts = np.where(going, accepted[row, here], 0).sum(1)
        seconds += np.where(
            active,
            machine.seconds(rows.sum(1), attended(rows, tape.behind[here] - 1).sum(1))
            + machine.beside(width, (more > 0).sum(1), accepts),
            0.0,
        )
        for name, mask in asked.items():
            deepest = np.where(drafts, levels[name][row, here], 0).max(1)
            seconds += mask * machine.drafting[name].seconds(deepest, drafts.sum(1))
        right += accepts
        drafted += more.sum(1)
        text_steps += width
        steps += active
        at += took
    tokens = np.full(count, int((ends - begins).sum()))
    return np.stack([steps, tokens, right, drafted, seconds, text_steps])
