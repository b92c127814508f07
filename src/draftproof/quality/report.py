"""Costs of precisions as a table, a picture and files."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from draftproof import tables
from draftproof.out_folders import save_figure, whole
from draftproof.pictures import STYLES
from draftproof.quality import BIN, Cost, Quality

NAMES = ("perplexity", "KL", "KL p99", "top-1", "texts\nsame", "part\nafter", "MB", "tokens/s")


def heading(quality: Quality, model: str, machine: str, source: str) -> str:
    """One line on what was compared. machine: threads, processor. source: of the text."""
    return (
        f"{model} beside itself in {quality.reference}; {machine}; {quality.tokens:,} tokens of "
        f"{source}"
    )


def table(quality: Quality, width: int) -> RenderableType:
    """One row per precision, the reference first; stacked where it takes more than `width`."""
    rows = [[quality.reference, *_own(quality)]]
    rows += [[each.precision, *_row(quality, each)] for each in quality.costs]
    return tables.fitting(NAMES, rows, width)


def legend(quality: Quality) -> str:
    """What the columns mean."""
    runners = {each.precision: each.runner for each in quality.costs}
    ran = ", ".join(f"{name} on {runner}" for name, runner in runners.items())
    return (
        f"{quality.reference} on torch is the reference; {ran}. "
        f"KL: of the next token's law from the reference's, in nats. Top-1: the likeliest token is "
        f"the same. Texts: of greedy ones of {quality.max_tokens} tokens, those that are the same, "
        "and after how many tokens the median one parts."
    )


def write(quality: Quality, about: dict[str, Any], folder: Path) -> list[Path]:
    """JSON, and a picture if matplotlib is there; the paths written.

    Raises `OSError` where a file cannot be written.
    """
    stem = time.strftime("quality-%Y%m%d-%H%M%S") + ("-incomplete" if quality.incomplete else "")
    written = [folder / f"{stem}.json"]
    with whole(written[0]) as part:
        part.write_text(json.dumps(about | quality.as_dict(), indent=1) + "\n")
    picture = folder / f"{stem}.png"
    if quality.costs and draw(quality, about["heading"], picture):
        written.append(picture)
    return written


def draw(quality: Quality, title: str, path: Path) -> bool:
    """Divergence by position in a window; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.set_title(title.replace("; ", "\n", 1), fontsize=11)
    for number, each in enumerate(quality.costs):
        marker, dash, shade = STYLES[number % len(STYLES)]
        at = [BIN * n + BIN // 2 for n in range(len(each.by_position))]
        axis.plot(
            at, each.by_position, marker=marker, linestyle=dash, color=shade, label=each.precision
        )
    axis.set_yscale("log")
    axis.set_xlabel("position in a window, tokens", fontsize=11)
    axis.set_ylabel(f"KL from {quality.reference}, nats", fontsize=11)
    axis.tick_params(labelsize=11)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=11, handlelength=4)
    save_figure(figure, path)
    return True


def _own(quality: Quality) -> list[str]:
    megabytes = f"{quality.weight_bytes / 1e6:,.0f}"
    return [f"{quality.perplexity:.2f}", *"-----", megabytes, _speed(quality.tokens_per_s)]


def _row(quality: Quality, each: Cost) -> list[str]:
    after = each.parts_after
    more = round(each.perplexity / quality.perplexity - 1, 3) + 0.0  # so that no -0.0% is written
    return [
        f"{each.perplexity:.2f} {more:+.1%}",
        f"{each.divergence:.5f}",
        f"{each.divergence_p99:.4f}",
        f"{each.agreement:.1%}",
        f"{each.same_texts}/{len(each.parted)}",
        "-" if math.isinf(after) else f"{after:g}",
        f"{each.weight_bytes / 1e6:,.0f}",
        _speed(each.tokens_per_s),
    ]


def _speed(tokens_per_s: float) -> str:
    return "-" if math.isnan(tokens_per_s) else f"{tokens_per_s:.4g}"
