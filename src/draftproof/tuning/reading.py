"""What a draft model drafts at every position of a known text, in wide passes.

A slice of the text is a chain of nodes in one pass: their rows are what the model says at each
position. A draft that agrees with the text goes on along that chain, for nothing; where one departs
from it, its tokens become side branches, and one pass runs a level of all of them. So a slice takes
a pass for every level, where drafting live takes as many for every position. Where a row's bits
hang on the pass that it is in (torch's kernels in bfloat16), picks may differ from a live run's by
near-ties; on the native runner none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof import rules, sampling
from draftproof.drafting.beside import PADDING
from draftproof.drafting.growth import Ranks
from draftproof.runners.base import EncoderInput, Target, Work
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.tuning.recording import root
from draftproof.tuning.records import Text
from draftproof.writing import Writing

SLICE = 16  # positions
KEY = -2  # of the texts that are read


@dataclass
class _Growth:
    """A draft behind one position; at, path: its tip among the nodes that run, tokens before it."""

    at: int
    path: list[int]
    room: int
    ranks: Ranks = ()
    tip: int = 0
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [1.0])


@torch.inference_mode()
def read(
    runner: Target, vocabulary: int, text: Text, params: SamplingParams, paths: Sequence[Ranks]
) -> list[TokenTree]:
    """The trees that a draft model proposes at each position.

    paths: of ranks, of a tree in which the likeliest node of each level has children. vocabulary:
    the target's. Raises `ValueError` for a draft of another vocabulary.
    """
    if abs(vocabulary - runner.vocabulary) >= PADDING:
        raise ValueError(
            f"the draft's vocabulary has {runner.vocabulary} tokens and the target's {vocabulary}: "
            "use a draft with the target's tokenizer"
        )
    widths = Counter(path[:-1] for path in paths)
    given = None if text.reads is None else EncoderInput(text.reads)
    whole = [*text.prompt, *text.output]
    first, trees = len(text.prompt), list[TokenTree]()
    fits = next((n for n, t in enumerate(whole) if t >= runner.vocabulary), len(whole))
    writing = Writing(
        KEY,
        text.prompt,
        params,
        seed=text.seed,
        rule=rules.named("coupled"),
        max_length=1 << 30,
        encoder_input=given,
    )
    try:
        for begin in range(0, len(text), SLICE):
            end = min(begin + SLICE, len(text), max(begin, min(fits, runner.max_length) - first))
            if end > begin:
                written = text.output[len(writing.output) : begin]
                writing.tokens += written
                writing.history.append(written)
                trees += _slice(runner, vocabulary, text, writing, whole, (begin, end), widths)
            behind = range(len(trees), min(begin + SLICE, len(text)))
            trees += [TokenTree.chain([root(text, at)]) for at in behind]
    finally:
        runner.free(KEY)
    return trees


def _slice(
    runner: Target,
    vocabulary: int,
    text: Text,
    writing: Writing,
    whole: Sequence[int],
    span: tuple[int, int],
    widths: Counter[Ranks],
) -> list[TokenTree]:
    begin, end = span
    first = len(text.prompt)
    line = list(whole[first + begin - 1 : first + end - 1])
    tokens, parents = line[:], list(range(-1, len(line) - 1))
    given = writing.encoder_input
    new = whole[runner.cached(KEY) : first + begin - 1]
    rows = _run(runner, new, tokens, parents, 0, given)
    growths = [
        _Growth(
            at=at - begin,
            path=list(text.output[begin:at]),
            room=min(text.room(at), runner.max_length - first - at),
            tokens=[root(text, at)],
        )
        for at in range(begin, end)
    ]
    growing = growths
    while growing := [g for g in growing if g.room > 0 and widths[g.ranks]]:
        for growth in growing:
            _level(growth, writing, rows[growth.at], widths[growth.ranks], vocabulary)
            token, here = growth.path[-1], growth.at
            if growth.room and here + 1 < len(line) and line[here + 1] == token:
                growth.at += 1
            elif growth.room:
                growth.at = len(tokens)
                tokens.append(token)
                parents.append(here)
        if len(tokens) > len(rows):
            rows += _run(runner, [], tokens, parents, len(rows), given)
    runner.keep(KEY, range(len(line)))
    return [TokenTree(g.tokens, g.parents, scores=g.scores) for g in growths]


def _level(growth: _Growth, writing: Writing, row: Tensor, count: int, vocabulary: int) -> None:
    """Give the tip its children; the first of them is the next tip."""
    try:
        ids, shares, _ = writing.rule.children(writing, growth.path, row, count, vocabulary)
    except sampling.NoCandidate:
        ids, shares = [], []
    before, score = growth.tip, growth.scores[growth.tip]
    growth.tip = len(growth.tokens)
    growth.tokens += ids
    growth.parents += [before] * len(ids)
    growth.scores += [score * share for share in shares]
    growth.ranks = (*growth.ranks, 0)
    growth.room = growth.room - 1 if ids else 0
    growth.path = [*growth.path, *ids[:1]]


def _run(
    runner: Target,
    new: Sequence[int],
    tokens: Sequence[int],
    parents: Sequence[int],
    ran: int,
    given: EncoderInput | None,
) -> list[Tensor]:
    """Rows of the nodes from `ran` on."""
    tree = TokenTree(tokens[:], parents[:])
    (output,) = runner.forward([Work(KEY, new, tree, ran, encoder_input=given)])
    return list(output.logits.clone())
