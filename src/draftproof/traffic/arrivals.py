"""When calls are due, in seconds from the beginning: evenly, at random, or as a file says."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path


def fixed(rate: float, count: int, seed: int) -> list[float]:
    """`rate` calls a second, evenly; nothing is drawn from the seed."""
    return [number / rate for number in range(count)]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """A Poisson process of `rate` calls a second: the gaps are exponential and independent."""
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


PROCESSES: dict[str, Callable[[float, int, int], list[float]]] = {
    "fixed": fixed,
    "poisson": poisson,
}


def read(path: Path) -> list[float]:
    """Those of a file: seconds, a line each, in order. Raises `ValueError` naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        known = ", ".join(PROCESSES)
        raise ValueError(
            f"cannot read the arrivals {path}: {reason}; give {known} or a file of seconds"
        ) from error
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            at = float(line)
        except ValueError:
            at = math.nan
        if not (math.isfinite(at) and at >= 0):
            raise ValueError(f"{path}, line {number}: {line[:40]!r} is no number of seconds")
        if times and at < times[-1]:
            raise ValueError(f"{path}, line {number}: {at:g} s is before the line above it")
        times.append(at)
    if not times:
        raise ValueError(f"{path} is empty: give seconds, a line each")
    return times
