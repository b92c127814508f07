"""How everything is timed: sides take turns, warm, and the median is reported."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from draftproof.runners.base import KEY as KEY
from draftproof.runners.base import Target, Work
from draftproof.tree import TokenTree

CURVE = (1, 2, 4, 6, 8, 12, 16)  # tokens in a pass at which the cost of a pass is measured

T = TypeVar("T")


def in_turn(sides: Sequence[T], turn: int) -> list[T]:
    """Everyone once; who is first moves on with every turn, so that a drift favours nobody."""
    first = turn % len(sides)
    return [*sides[first:], *sides[:first]]


def interleaved(
    sides: Mapping[str, Callable[[], object]], rounds: int, warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, sides in turn; the first `warm` rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm + rounds):
        for name in in_turn(list(sides), turn):
            began = time.perf_counter()
            sides[name]()
            if turn >= warm:
                seconds[name].append(time.perf_counter() - began)
    return seconds


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


def pass_seconds(runner: Target, context: int, rounds: int = 15) -> dict[int, float]:
    """Median seconds of a pass over each number of tokens in `CURVE`, behind `context` tokens."""
    over = passes(runner, context)
    took = interleaved({str(t): over(t) for t in CURVE}, rounds, warm=3)
    runner.free(KEY)
    return {int(tokens): statistics.median(seconds) for tokens, seconds in took.items()}


def median_ratio(above: list[float], below: list[float]) -> float:
    """Median of the round-by-round ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def load() -> str:
    """Load average of the last minute."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def processor() -> str:
    """Its name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            line = next(line for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
    return line.partition(":")[2].strip()


def machine() -> str:
    """One line: processor, cores, threads, load, versions."""
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{processor()}, {os.cpu_count()} cores, {capability}, {torch.get_num_threads()} threads, "
        f"load {load()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
