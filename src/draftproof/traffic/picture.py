"""The picture of a sweep: speed and times over what was asked at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof.out_folders import save_figure
from draftproof.pictures import STYLES
from draftproof.traffic.summary import PERCENTILES

PANELS = {
    "first_token_ms": "time to first token, ms",
    "per_token_ms": "time per output token, ms",
    "whole_ms": "end to end, ms",
}


def draw(levels: Sequence[dict[str, Any]], heading: str, path: Path) -> None:
    """Four panels, a point for each load. Needs matplotlib.

    Raises `ValueError` where the file cannot be written, or not in that format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    figure.suptitle(heading, fontsize=12)
    speed, *times = figure.subplots(2, 2).flat
    places = range(len(levels))
    _curve(speed, 0, [level["tokens_per_s"] for level in levels], "tokens/s")
    speed.set_title("tokens/s, all together", fontsize=12)
    for axis, (field, title) in zip(times, PANELS.items(), strict=True):
        for number, p in enumerate(PERCENTILES):
            values = [(level[field] or {}).get(f"p{p}", float("nan")) for level in levels]
            _curve(axis, number, values, f"p{p}")
        axis.set_title(title, fontsize=12)
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), handlelength=4)
    for axis in (speed, *times):
        axis.set_xticks(places, [level["level"] for level in levels])
        axis.set_ylim(bottom=0)
    try:
        save_figure(figure, path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error


def _curve(axis: Any, number: int, values: Sequence[float], label: str) -> None:
    marker, dash, shade = STYLES[number]
    axis.plot(range(len(values)), values, marker=marker, linestyle=dash, color=shade, label=label)
