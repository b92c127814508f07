"""What a pass costs by its rows: a shipped curve, and the tools that a learnt one needs."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np

# Costs are linear between two of these, so each number of rows that drafts of a few texts make of a
# pass is one: kernels run 6, 12 or 16 rows at a time, and one more takes a third longer.
ROWS: tuple[int, ...] = (*range(1, 18), 20, 24, 32, 48, 64, 128, 256, 512, 1024)
MOST = 96  # rows that drafts can make of a pass: beyond it only prompts are read
# Rows at which arithmetic takes as long as reading the weights, by what computes. Measured on the
# first four; the others by the rates that their makers state.
KNEES = {
    "int8": 11.0,
    "avx512": 9.0,
    "avx2": 5.0,
    "avx2 integers": 4.0,  # half of the bytes or less, and multiplied hardly faster
    "amx": 24.0,
    "torch": 6.0,
    "cuda": 96.0,
}
# Of what the first row of a text takes to attend, what each further one takes: the keys and values
# of a text are read once for all of its rows. Measured: 0.1 to 0.25, of drafts and of prompts.
FURTHER = 1 / 6


def attended(rows: Any, behind: Any) -> Any:
    """Tokens that rows of one text attend to, counted as often as they take one row's time.

    behind: tokens before the first of them. Numbers, or arrays of them.
    """
    return (rows > 0) * (1 + FURTHER * (rows - 1)) * (behind + (rows + 1) / 2)


def shipped(knee: float) -> list[float]:
    """Costs at `ROWS` before anything is known of a machine, in passes over one row.

    A pass takes as long as the slower of reading the weights and computing with them, and where
    both take as long they get into each other's way: a soft maximum of 1 and rows / knee.
    """
    costs = [(1 + (rows / knee) ** 3) ** (1 / 3) for rows in ROWS]
    return [cost / costs[0] for cost in costs]


def rising(values: Any, weights: Any) -> Any:
    """The numbers nearest to `values`, squares weighted, that never fall (isotonic regression)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        many = 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, more = blocks.pop()
            mean = (before * heavy + mean * weight) / (heavy + weight)
            weight, many = heavy + weight, many + more
        blocks.append((mean, weight, many))
    return np.repeat([block[0] for block in blocks], [block[2] for block in blocks])


def between(rows: int) -> tuple[int, float]:
    """The place in `ROWS` at or below, and how far it is from there to the next, in octaves."""
    low = min(bisect_right(ROWS, rows) - 1, len(ROWS) - 2)
    return low, math.log2(rows / ROWS[low]) / math.log2(ROWS[low + 1] / ROWS[low])


def along(logs: Any, rows: int) -> float:
    """Of logarithms at `ROWS`, the one at so many rows."""
    low, share = between(rows)
    return float(logs[low] * (1 - share) + logs[low + 1] * share)


def _grid() -> Any:
    grid = np.zeros((MOST, len(ROWS)))
    for rows in range(1, MOST + 1):
        low, share = between(rows)
        grid[rows - 1, low], grid[rows - 1, low + 1] = 1 - share, share
    return grid


GRID = _grid()
