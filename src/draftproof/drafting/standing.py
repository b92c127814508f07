"""A draft as the target of its own drafter: its states, and its first layers.

A drafter knows one target and one pass a step. Here it is told of all that the draft ran in a step
as of one pass, and finds it cached; so what reads states of the target, or runs its first layers,
drafts for a draft as it does for a target.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from draftproof.drafting.beside import Beside, along
from draftproof.drafting.stage import Stage
from draftproof.rules import argmax_of
from draftproof.runners.base import Output, Target, Work
from draftproof.tree import TokenTree
from draftproof.writing import Cost, Feedback, Writing


class Standing:
    """The draft's runner, with what it ran in this step counted as committed."""

    def __init__(self, runner: Target, stages: Mapping[int, Stage]) -> None:
        self._runner, self._stages = runner, stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def cached(self, key: int) -> int:
        stage = self._stages.get(key)
        if stage is None or stage.ran is None:
            return self._runner.cached(key)
        return len(stage.shadow.tokens) - 1

    def forward(self, work: Sequence[Work], *given: Any, **options: Any) -> list[Output]:
        return self._runner.forward([self._hung(each) for each in work], *given, **options)

    def _hung(self, work: Work) -> Work:
        stage = self._stages.get(work.key)
        if stage is None or stage.ran is None or work.tree is None:
            return work
        return replace(work, tree=stage.hung(work.tree), first=len(stage.ran) + work.first)


def follow(stage: Stage, request: Writing, vocabulary: int) -> None:
    """Take over the text, and recall the path that was kept of what the draft ran last."""
    before, (at, rewinds) = stage.shadow.feedback, stage.start
    stage.follow(request, vocabulary)
    text, path = stage.shadow, list[int]()
    if before is not None and text.shortest(rewinds) > at:
        path = along(before.tree, text.tokens[at:-1])
    text.feedback = replace(before, path=path) if before is not None and path else None


def run(
    beside: Beside, asked: Sequence[tuple[Writing, Stage]], taps: tuple[int, ...]
) -> list[tuple[TokenTree, Output, Cost]]:
    """A pass over all guesses: what ran with each, its rows, and what the pass took."""
    wholes = [stage.hung(stage.guess) for _, stage in asked]
    work = [
        beside.work(request, whole, len(whole) - len(stage.guess))
        for (request, stage), whole in zip(asked, wholes, strict=True)
    ]
    began = time.perf_counter()
    outputs = beside.runner.forward(work, taps)
    cost = time.perf_counter() - began, sum(map(Work.rows, work))
    return [(*each, cost) for each in zip(wholes, outputs, strict=True)]


def learn(stage: Stage, output: Output, path: Sequence[int], best: bool, cost: Cost) -> None:
    """Tell the drafter of a pass over its guess: the draft accepts `path`, and has yet to write it.

    best: whether it wants the argmax behind every node.
    """
    assert stage.ran is not None
    shadow, first = stage.shadow, len(stage.ran) - len(stage.guess)
    hidden, argmaxes = dict(output.hidden), argmax_of(output) if best else None
    if first:
        before = shadow.feedback  # of the earlier passes of this step
        assert before is not None
        hidden = {tap: torch.cat([before.hidden[tap], rows]) for tap, rows in hidden.items()}
        argmaxes = None if argmaxes is None else [*(before.best or ()), *argmaxes]
    else:  # copied, as the runner's next pass may write to its rows
        stage.start = len(shadow.tokens) - 1, shadow.rewinds
        hidden = {tap: rows.clone() for tap, rows in hidden.items()}
    stage.tip = first + path[-1]
    whole = stage.ran.path(stage.tip)
    shadow.feedback = Feedback(stage.ran, whole, hidden, argmaxes, *cost, first)
