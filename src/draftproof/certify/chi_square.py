"""Pearson's chi-square test over pooled outcomes, and what it could have found.

Knows counts and shares, not where they come from.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

LEAST = 5  # expected counts of a bin
POWER = 0.99
POOL = -2  # at the end of a bin's name: what begins like this and is too rare to stand alone

Outcome = tuple[int, ...]


def chi_square(
    want: Mapping[Outcome, float], counts: Counter[Outcome], runs: int
) -> tuple[int, float]:
    """Bins and p; outcomes that are expected less than `LEAST` times are pooled."""
    expected, seen = defaultdict[Outcome, float](float), Counter[Outcome]()
    for outcome, name in pooled(want, runs).items():
        expected[name] += runs * want[outcome]
        seen[name] += counts[outcome]
    if len(expected) < 2:
        return len(expected), 1.0  # nothing to test
    statistic = sum((seen[name] - wanted) ** 2 / wanted for name, wanted in expected.items())
    return len(expected), float(_above(len(expected) - 1, statistic))


def pooled(want: Mapping[Outcome, float], runs: int) -> dict[Outcome, Outcome]:
    """The name of every outcome's bin; what is rare joins what begins as it does.

    So the first tokens are still told apart where runs are too few for three.
    """
    bins = {outcome: [outcome] for outcome in want}

    def rare(name: Outcome) -> bool:
        return runs * sum(want[one] for one in bins[name]) < LEAST

    for size in range(max(map(len, want), default=1) - 1, -1, -1):
        for name in [name for name in bins if len(name) > size and rare(name)]:
            members = bins.pop(name)
            bins.setdefault((*name[:size], POOL), []).extend(members)
    if (POOL,) in bins and rare((POOL,)) and len(bins) > 1:  # too few to stand alone
        members = bins.pop((POOL,))
        bins[min(bins, key=lambda name: sum(want[one] for one in bins[name]))] += members
    return {outcome: name for name, members in bins.items() for outcome in members}


@cache
def visible(bins: int, runs: int, alpha: float) -> float:
    """The total variation from which on a law over these bins is found `POWER` of the time.

    alpha: p below which the test fails. However the law differs: its noncentrality, runs times
    sum((q - p)^2 / p), is at least runs times (2 TV)^2 (Cauchy and Schwarz).
    """
    if bins < 2:
        return math.inf
    free = bins - 1

    def power(noncentrality: float) -> float:
        """The chance of more than `border` under the noncentral law, a mixture over Poisson."""
        mean = noncentrality / 2
        j = torch.arange(int(mean + 12 * math.sqrt(mean) + 30), dtype=torch.float64)
        weights = (j * math.log(mean) - mean - torch.lgamma(j + 1)).exp()
        return float((weights * _above(free + 2 * j, border)).sum())

    border = _solved(lambda x: -float(_above(free, x)), -alpha)
    return math.sqrt(_solved(power, POWER) / runs) / 2


def _above(free: Tensor | int, x: float) -> Tensor:
    """The chance of more than `x` under chi-square with so many degrees of freedom."""
    half = torch.as_tensor(free, dtype=torch.float64) / 2
    above: Tensor = torch.special.gammaincc(half, torch.full_like(half, x / 2))
    return above


def _solved(rising: Callable[[float], float], value: float) -> float:
    low, high = 1e-9, 1.0
    while rising(high) < value:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high
