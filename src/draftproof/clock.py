"""How everything is timed: sides take turns, warm, and the median is reported."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from draftproof.runners.base import Target, Work
from draftproof.tree import TokenTree

KEY = -1  # of what is timed: no request's


def interleaved(
    sides: Mapping[str, Callable[[], object]], rounds: int, warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, sides in turn; the first `warm` rounds are not counted.

    The order turns around every round, so that a drift of the machine favours nobody.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm + rounds):
        names = list(sides) if turn % 2 else list(sides)[::-1]
        for name in names:
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
