"""What a pass costs, measured: tree shapes, comparisons and training all reckon with this."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from draftproof import clock
from draftproof.runners.base import KEY, Target, Work
from draftproof.tree import TokenTree

CURVE = (1, 2, 4, 6, 8, 12, 16)  # tokens in a pass


def context_ids(runner: Target, length: int) -> list[int]:
    """Token ids to stand behind; which ones does not matter."""
    return [(7 * i) % runner.vocabulary for i in range(length)]


def passes(runner: Target, context: int) -> Callable[[int], Callable[[], object]]:
    """Reads `context` tokens under `KEY`; then tokens -> a pass over so many nodes behind them."""
    runner.forward([Work(KEY, context_ids(runner, context), None)])

    def over(tokens: int) -> Callable[[], object]:
        tree = TokenTree.chain([1] * tokens)
        return lambda: runner.forward([Work(KEY, [], tree)])

    return over


def pass_seconds(
    runner: Target, context: int, sizes: Sequence[int] = CURVE, *, rounds: int = 15, warm: int = 3
) -> dict[int, float]:
    """Median seconds of a pass over each number of tokens, behind `context` tokens or what fits."""
    over = passes(runner, min(context, max(1, runner.max_length - max(sizes))))
    try:
        took = clock.interleaved({str(size): over(size) for size in sizes}, rounds, warm)
    finally:
        runner.free(KEY)
    return {int(size): statistics.median(seconds) for size, seconds in took.items()}
