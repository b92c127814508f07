"""How everything is timed: sides take turns, warm, and the median is reported."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch


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


def median_ratio(above: list[float], below: list[float]) -> float:
    """Median of the round-by-round ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def load() -> str:
    """Load average of the last minute."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def machine() -> str:
    """One line: processor, cores, threads, load, versions."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{model}, {os.cpu_count()} cores, {capability}, {torch.get_num_threads()} threads, "
        f"load {load()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
