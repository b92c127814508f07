"""How everything is timed: sides take turns, warm, and the median is reported."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


def computes(device: Any) -> str:
    """The name of what computes on a torch device: a card, or the processor."""
    if device.type != "cuda":
        return processor()
    import torch  # as below

    return str(torch.cuda.get_device_name(device))


def ran_on(runner: Any) -> str:
    """Where a runner's passes ran: threads and the processor, or the card."""
    if runner.device.type != "cpu":
        return computes(runner.device)
    import torch  # as below

    threads = runner.threads or torch.get_num_threads()
    return f"{threads} {'thread' if threads == 1 else 'threads'}, {processor()}"


def widest() -> str:
    """The widest instructions of the processor, as torch calls them: one name has several kinds."""
    import torch  # as below

    return str(torch.backends.cpu.get_cpu_capability())


def machine() -> str:
    """One line: processor, cores, threads, load, versions."""
    import torch  # here alone: a client of a server has no use for it

    return (
        f"{processor()}, {os.cpu_count()} cores, {widest()}, {torch.get_num_threads()} threads, "
        f"load {load()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
