"""What drafting models share: growing token trees, one pass of the model a level.

Stopping after a doubtful token: transformers' assisted generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from draftproof.drafting.base import Drafter, GoesOn
from draftproof.drafting.beside import Beside
from draftproof.drafting.growth import Growth, Ranks, Shape
from draftproof.drafting.together import passed
from draftproof.runners.base import Output
from draftproof.tree import TokenTree
from draftproof.writing import Children, Writing

DEEPEST = 16  # levels of a draft that is grown as long as it pays
Run = Callable[[Sequence[Growth]], Sequence[Output]]  # a pass; the last rows are the tips'
Draw = Callable[[Growth, Sequence[int], Tensor, int], Children]  # path, row (V,), count


def grow(growths: Sequence[Growth], run: Run, draw: Draw, goes_on: GoesOn | None = None) -> None:
    """Until every growth has its shape, or its room, or the model is in doubt, or none goes on."""
    while growing := going(growths, goes_on):
        for growth, output in passed(growing, run, stop):
            tips, rows = growth.tips, output.logits
            growth.ran += len(tips)
            first = len(rows) - len(tips)
            try:
                growth.level(
                    draw(growth, tip.path, rows[first + number], tip.children)
                    for number, tip in enumerate(tips)
                )
            except Exception as error:  # of a row, or of a rule from outside: this request's alone
                stop(growth, error)


def going(growths: Sequence[Growth], goes_on: GoesOn | None) -> list[Growth]:
    """Those that get another level, if who asked for them agrees."""
    growing = [growth for growth in growths if growth.room > 0]
    if growing and goes_on is not None:
        for growth, on in zip(growing, goes_on(growing), strict=True):
            growth.room = growth.room if on else 0
    return [growth for growth in growing if growth.room]


def grow_beside(
    draft: Beside,
    requests: Sequence[Writing],
    shapes: Sequence[Shape],
    draw: Draw,
    goes_on: GoesOn | None = None,
) -> list[TokenTree]:
    """A tree of its shape for each request, by a model beside the target."""

    def run(growing: Sequence[Growth]) -> Sequence[Output]:
        return draft.runner.forward(
            [draft.work(growth.request, growth.run_tree(), growth.ran) for growth in growing]
        )

    ready = draft.catch_up(requests)
    growths = [
        Growth(request, shape, draft.room(request) if able else 0)
        for request, shape, able in zip(requests, shapes, ready, strict=True)
    ]
    grow(growths, run, draw, goes_on)
    for growth in growths:
        if growth.ran:
            draft.ran(growth.request, growth.run_tree(growth.ran))
    return [growth.tree() for growth in growths]


class Growing(Drafter):
    """A method whose model grows a chain, with siblings at every depth."""

    vocabulary: int  # the target's

    def __init__(
        self, num_draft_tokens: int | None, min_confidence: float, branch: int, usual: int
    ) -> None:
        """usual: num_draft_tokens where none are given."""
        longest = usual if num_draft_tokens is None else num_draft_tokens
        if longest < 1 or branch < 1:
            raise ValueError("num_draft_tokens and branch must be 1 or more")
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence={min_confidence} is not within [0, 1]")
        self.num_draft_tokens = num_draft_tokens
        self.min_confidence, self.branch = min_confidence, branch

        def width(ranks: Ranks) -> int:
            return 0 if any(ranks) else branch

        self.chain = Shape(width, longest, min_confidence)
        # Where each level is asked for, that alone ends a draft, unless a length was given.
        self.open = Shape(width, num_draft_tokens or DEEPEST, min_confidence)

    def draw(self, growth: Growth, path: Sequence[int], row: Tensor, count: int) -> Children:
        """What follows `path` by a row of the model."""
        writing = growth.request
        return writing.rule.children(writing, path, row, count, self.vocabulary)


def stop(growth: Growth, error: Exception) -> None:
    """End a growth whose model failed, and tell the request."""
    growth.room = 0
    growth.request.stop_drafting(error)
