"""What a pass costs, measured: tree shapes, comparisons and training all reckon with this."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch

from draftproof import clock
from draftproof.runners.base import KEY, Target, Work
from draftproof.runners.takeover import on_threads
from draftproof.tree import TokenTree

SMALL, GAIN = 0.03, 1.15  # seconds of a pass, and what more threads must bring to be worth it
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


def threads_of_torch(runner: Target) -> int | None:
    """The threads that passes of this runner are worth: 1, or None: as many as torch has.

    Threads wait for one another after every operation: beside a process that keeps a core busy two
    take three times as long as one. So a small pass gets a second one only if it is faster by it:
    a pass over 8 tokens, as many as a step with a draft reads.
    """
    threads = torch.get_num_threads()
    if runner.device.type != "cpu" or threads == 1:
        return None
    over = passes(runner, min(16, runner.max_length - 8))(8)
    alone, together = partial(on_threads, 1, over), partial(on_threads, threads, over)
    try:
        if min(*clock.interleaved({"alone": alone}, 2)["alone"]) > SMALL:
            return None
        took = clock.interleaved({"alone": alone, "together": together}, 3)
    finally:
        runner.free(KEY)
    return None if clock.median_ratio(took["alone"], took["together"]) > GAIN else 1
