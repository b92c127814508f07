"""Pearson's test of counts against a law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch


def chi_square_p(counts: Counter, law: Mapping, least: float = 5.0) -> float:
    """Pearson's test of `counts` against `law`: the probability of a deviation this large.

    Cells are pooled, from the least likely on, until each expects at least `least`. A count where
    the law has no mass gives 0.
    """
    n = sum(counts.values())
    if any(law.get(cell, 0.0) <= 0 for cell, count in counts.items() if count):
        return 0.0
    bins: list[tuple[float, int]] = []  # (expected, seen)
    expected, seen = 0.0, 0
    for cell in sorted(law, key=lambda cell: law[cell]):
        expected, seen = expected + n * law[cell], seen + counts[cell]
        if expected >= least:
            bins.append((expected, seen))
            expected, seen = 0.0, 0
    if seen or expected > 0:  # only if all of it is less than one bin
        bins.append((expected, seen))
    if len(bins) < 2:
        return 1.0
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in bins)
    halves = torch.tensor([len(bins) - 1, statistic], dtype=torch.float64) / 2
    return torch.special.gammaincc(halves[0], halves[1]).item()
