"""Intervals of a paired ratio, as a table and as a forest plot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

Turns = list[dict[str, Any]]
NORMAL = 1.96  # of a 95% interval
ALLOWED = {"auto": 0.98, "off": 0.99}


def read(path: Path) -> dict[str, Turns]:
    """Turns by cell; a last line that was cut off does not count."""
    found: dict[str, Turns] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            turn = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.setdefault(turn["cell"], []).append(turn)
    return found


def ratios(turns: Turns, side: str) -> list[float]:
    """Plain seconds over the side's, of the turns that have it."""
    seconds = [turn["seconds"] for turn in turns if side in turn["seconds"]]
    return [each["plain"] / each[side] for each in seconds]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Middle and 95% interval of paired ratios, by signed ranks: one turn that a neighbour held up
    moves neither. Hodges and Lehmann 1963; the normal approximation of Wilcoxon's statistic.
    """
    logs, n = np.log(values), len(values)
    first, second = np.triu_indices(n)
    means = np.sort((logs[first] + logs[second]) / 2)
    spread = NORMAL * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    at = max(0, round(n * (n + 1) / 4 - spread))
    low, high = float(means[at]), float(means[-1 - at])
    return math.exp(float(np.median(means))), math.exp(low), math.exp(high)


def half(values: list[float]) -> float:
    """Half of the interval's width."""
    _, low, high = interval(values)
    return (high - low) / 2


def line(name: str, turns: Turns) -> str:
    """What a cell came to."""
    parts = [f"{name}: {len(turns)} turns"]
    for side in ALLOWED:
        if values := ratios(turns, side):
            middle, low, high = interval(values)
            parts.append(f"{side} {middle:.3f} ({low:.3f}-{high:.3f})")
    steps = sum(turn["steps"] for turn in turns)
    parts.append(f"{sum(turn['tokens'] for turn in turns) / steps:.2f} tokens/step")
    return ", ".join(parts)


def table(found: dict[str, Turns]) -> Table:
    """A row per cell, and the mean of all."""
    rows = Table("cell", "turns", "auto / plain", "off / plain", "tokens/step", "differing")
    for name, turns in found.items():
        cells = [name, str(len(turns))]
        for side, least in ALLOWED.items():
            values = ratios(turns, side)
            if values:
                middle, low, high = interval(values)
                cells.append(f"{middle:.3f} ({low:.3f}-{high:.3f})" + " <" * (high < least))
            else:
                cells.append("-")
        steps = sum(turn["steps"] for turn in turns)
        cells.append(f"{sum(turn['tokens'] for turn in turns) / steps:.2f}")
        rows.add_row(*cells, str(sum(turn["differing"] for turn in turns)))
    means = [mean(found, side) for side in ALLOWED]
    rows.add_row(f"mean of {len(found)}", "", *(f"{each:.3f}" for each in means), "", "")
    return rows


def summary(found: dict[str, Turns]) -> dict[str, Any]:
    """What the pages show of all turns."""
    cells = {}
    for name, turns in found.items():
        sides = {side: interval(values) for side in ALLOWED if (values := ratios(turns, side))}
        cells[name] = {
            "turns": len(turns),
            **sides,
            "tokens_per_step": sum(turn["tokens"] for turn in turns)
            / sum(turn["steps"] for turn in turns),
            "differing": sum(turn["differing"] for turn in turns),
        }
    every = [turn for turns in found.values() for turn in turns]
    return {
        "processors": sorted({turn["processor"] for turn in every}),
        "dates": sorted({turn["date"][:10] for turn in every}),
        "means": {side: mean(found, side) for side in ALLOWED},
        "cells": cells,
    }


def mean(found: dict[str, Turns], side: str) -> float:
    """The geometric mean of all cells' middles."""
    middles = [interval(values)[0] for turns in found.values() if (values := ratios(turns, side))]
    return math.exp(sum(map(math.log, middles)) / len(middles)) if middles else math.nan


def draw(found: dict[str, Turns], path: Path) -> None:
    """A forest plot: each cell's interval beside plain decoding."""
    from matplotlib.figure import Figure

    names = list(found)
    figure = Figure(figsize=(8, 1 + 0.22 * len(names)))
    axes = figure.add_subplot()
    for row, name in enumerate(reversed(names)):
        middle, low, high = interval(ratios(found[name], "auto"))
        axes.plot([low, high], [row, row], color="black", linewidth=1)
        axes.plot([middle], [row], "s", color="black", markersize=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.axvline(ALLOWED["auto"], color="#b2182b", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    ticks = (0.9, 1, 1.2, 1.5, 2, 3)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=7)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("plain seconds / seconds, 95% intervals")
    figure.savefig(path, dpi=150, bbox_inches="tight")
