"""A source that drafts from its records, and the clock of a replay in which it does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter, GoesOn
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.tuning.machine import Machine
from draftproof.tuning.recording import root
from draftproof.tuning.records import Text
from draftproof.tuning.sources import Source
from draftproof.writing import Writing


class Clock:
    """What is said to have passed, and what deciding takes of this thread."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._since: float | None = None  # somebody decides

    def __call__(self) -> float:
        return self.passed + (0.0 if self._since is None else time.thread_time() - self._since)

    def deciding(self, begins: bool) -> None:
        """From now on somebody decides, or nobody."""
        self.passed = self()
        self._since = time.thread_time() if begins else None


class Replayed(Drafter):
    """A source that answers from its records, as fast as it was measured."""

    def __init__(
        self, source: Source, texts: Sequence[Text], machine: Machine, clock: Clock, branch: int
    ) -> None:
        like = adopt(source.part.proposer())
        self.name, self.stepwise = like.name, like.stepwise
        self.drafting_cost, self.promise, self.trust = like.drafting_cost, like.promise, like.trust
        self.source, self.texts, self.clock, self.branch = source.name, texts, clock, branch
        self.drafting = machine.drafting[source.name]
        self.doubt = getattr(like, "min_confidence", 0.0)

    def bind(self, target: Target, load: Load) -> None:
        return

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.propose_within(requests, lambda grown: [True] * len(grown))

    def propose_within(self, requests: Sequence[Writing], goes_on: GoesOn) -> list[TokenTree]:
        self.clock.deciding(False)
        grown = [self._whole(request) for request in requests]
        self._took(0, len(requests))
        growing = grown if self.stepwise else []
        while growing := [each for each in growing if each.level < each.deepest]:
            self.clock.deciding(True)
            going = goes_on(growing)
            self.clock.deciding(False)
            growing = [each for each, on in zip(growing, going, strict=True) if on]
            self._took(1, len(growing))
            for each in growing:
                each.level += 1
        self.clock.deciding(True)
        return [each.tree if self.stepwise else each.whole for each in grown]

    def _took(self, levels: int, count: int) -> None:
        """A source's seconds are those of a call, or of a level that so many texts got."""
        texts = np.array([count])
        seconds = self.drafting.seconds(np.array([levels]), texts)
        if levels:
            seconds = seconds - self.drafting.seconds(np.array([0]), texts)
        self.clock.passed += float(seconds[0]) if count else 0.0

    def _whole(self, request: Writing) -> Partly:
        text = self.texts[request.key]
        at = len(request.tokens) - len(request.prompt)
        tree = text.trees[self.source].tree(at, root(text, at))
        if self.stepwise:  # more siblings were asked for than will be
            tree = _narrow(tree, self.branch)
            tree = tree.truncate(_doubtful(tree, self.doubt))
        return Partly(request, tree.truncate(max(0, request.room - 1)))


@dataclass
class Partly:
    """A recorded tree while it is let out level by level."""

    request: Writing
    whole: TokenTree
    level: int = 0

    @property
    def deepest(self) -> int:
        return max(self.whole.depths)

    @property
    def tree(self) -> TokenTree:
        count = sum(depth <= self.level for depth in self.whole.depths)
        scores = self.whole.scores or ()
        return TokenTree(
            self.whole.tokens[:count], self.whole.parents[:count], None, scores[:count]
        )

    @property
    def tokens(self) -> Sequence[int]:
        return self.tree.tokens

    @property
    def parents(self) -> Sequence[int]:
        return self.tree.parents

    @property
    def scores(self) -> Sequence[float]:
        return self.tree.scores or ()


def _doubtful(tree: TokenTree, doubt: float) -> int:
    """Levels behind which a growing draft ends, because its model is in doubt."""
    tip, levels, scores = 0, 0, tree.scores or ()
    while (children := tree.children(tip)) and (not levels or scores[tip] >= doubt):
        tip, levels = children[0], levels + 1
    return levels


def _narrow(tree: TokenTree, branch: int) -> TokenTree:
    """Of the children of node 0 the first so many."""
    dropped = {*tree.children(0)[branch:]}
    if not dropped:
        return tree
    kept = [node for node in range(len(tree)) if node not in dropped]
    new = {-1: -1} | {old: at for at, old in enumerate(kept)}
    scores = tree.scores or ()
    return TokenTree(
        [tree.tokens[n] for n in kept],
        [new[tree.parents[n]] for n in kept],
        None,
        [scores[n] for n in kept],
    )
