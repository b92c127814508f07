"""How everything is timed: sides take turns, warm, and the median is reported."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, TypeVar

T = TypeVar("T")

WIDEST = {"amx_tile": "AMX", "avx512f": "AVX512", "avx2": "AVX2"}  # of x86, by flag


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
    """Its name, as far as the system tells, and its instructions: one name has several kinds."""
    return ", ".join(part for part in (_name(), widest()) if part)


def widest() -> str:
    """The widest instructions that an x86 processor has for numbers; "" where nothing tells."""
    flags = _told().get("flags", "").split()
    return next((found for flag, found in WIDEST.items() if flag in flags), "")


def _name() -> str:
    """With family and model where Linux tells them: clouds call all of a maker's alike."""
    told = _told()
    name = told.get("model name") or platform.processor() or platform.machine()
    kind = [f"{what.split()[-1]} {told[what]}" for what in ("cpu family", "model") if what in told]
    return f"{name} ({' '.join(kind)})" if kind else name


@cache
def _told() -> dict[str, str]:
    """What Linux says of the first processor."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in lines}


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


def machine() -> str:
    """One line: processor, cores, threads, load, versions."""
    import torch  # here alone: a client of a server has no use for it

    instructions = widest() or platform.machine()
    return (
        f"{_name()}, {os.cpu_count()} cores, {instructions}, {torch.get_num_threads()} threads, "
        f"load {load()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
