"""The picture of a comparison: readable at half size and in grey.

Sides are told apart by marker and dash as well as by shade; legends lie outside of the curves.
"""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path
from typing import Any

from draftproof.bench.report import OURS, cases, processor, threads
from draftproof.out_folders import save_figure
from draftproof.pictures import STYLES

STRIPS = 4  # answers of a side whose decisions are drawn
HATCHES = ("", "//", "..", "xx", "--", "oo")  # told apart in grey
OWN, OTHER = "#2a7f3f", "#b0b0b0"  # of bars; dark and light in grey too


def draw(found: dict[str, Any], path: Path) -> bool:
    """Bars of tokens/s and tokens per step, acceptance by position; False without matplotlib.

    Below them, of sides that decide while they write: strips of what drafted each token.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    grouped = cases(found)
    sides = max(map(len, grouped.values()), default=1)
    height = 1.7 + 0.42 * max(sides, 6)
    strips = [_strips(results) for results in grouped.values()]
    heights = [each for strip in strips for each in (height, 0.9 + 0.25 * len(strip))]
    figure = Figure(figsize=(13, 0.6 + sum(heights)), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(_title(found), 90)), fontsize=13)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for number, (case, results) in enumerate(grouped.items()):
        speed, steps, accepted = parts[2 * number].subplots(1, 3, width_ratios=(4, 3, 4))
        if strips[number]:
            _draw_strips(parts[2 * number + 1].subplots(), strips[number])
        where = f"T={case[0]:g}, batch {case[1]}"
        _bars(speed, f"tokens/s, {where}", results, "tokens_per_s")
        _bars(steps, "tokens per step", results, "tokens_per_step")
        steps.set_yticklabels([])
        _curves(accepted, results)
    save_figure(figure, path)
    return True


def _title(found: dict[str, Any]) -> str:
    about, options = found["environment"], found["options"]
    shape = f" as {options['inflate']}" if options["inflate"] else ""
    return (
        f"{Path(options['model']).name}{shape}: {about.get('runner', 'torch')}, {about['dtype']}, "
        f"{threads(about)}, {processor(about)}"
    )


def _bars(axis: Any, title: str, results: list[dict[str, Any]], field: str) -> None:
    """A bar per side with its figure; whiskers to the lowest and the highest round."""
    rounds = [
        each[field] if isinstance(each[field], list) else [each[field] or 0.0] for each in results
    ]
    values = [statistics.median(each) for each in rounds]
    ends = [max(each) for each in rounds]
    bars = axis.barh(
        [each["side"] for each in results],
        values,
        color=[OWN if each["side"].startswith(OURS) else OTHER for each in results],
        edgecolor="black",
        linewidth=0.6,
    )
    below = [value - min(each) for value, each in zip(values, rounds, strict=True)]
    above = [end - value for value, end in zip(values, ends, strict=True)]
    if any(below + above):
        whiskers = {"fmt": "none", "color": "black", "capsize": 3}
        axis.errorbar(values, range(len(values)), xerr=[below, above], **whiskers)
    for bar, value, end in zip(bars, values, ends, strict=True):
        text = "not told" if not value else f"{value:.4g}" if value >= 10 else f"{value:.2f}"
        middle = bar.get_y() + bar.get_height() / 2
        beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 10}
        axis.annotate(text, (end, middle), **beside)
    axis.set_xlim(0, 1.25 * max([*ends, 1e-9]))
    axis.tick_params(labelsize=11)
    axis.set_title(title, fontsize=12)
    axis.invert_yaxis()


def _curves(axis: Any, results: list[dict[str, Any]]) -> None:
    """Share of the drafts accepted up to each position."""
    from matplotlib.ticker import MaxNLocator

    drafting = [each for each in results if each["acceptance"] is not None]
    for number, each in enumerate(drafting):
        shares = each["acceptance"]["cumulative"]
        marker, dash, shade = STYLES[number % len(STYLES)]
        axis.plot(
            range(1, len(shares) + 1),
            shares,
            marker=marker,
            linestyle=dash,
            color=shade,
            # Under what is drawn later a larger, hollow marker shows.
            markersize=9 - min(number, 5),
            fillstyle="none" if number % 2 == 0 else "full",
            linewidth=1.8,
            label=each["side"].removeprefix(OURS),
        )
    axis.set_title("share accepted up to a position", fontsize=12)
    axis.set_ylim(0, 1.03)
    axis.tick_params(labelsize=11)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if drafting:
        axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=11, handlelength=4)
    else:
        axis.text(0.5, 0.5, "nothing was drafted", ha="center", transform=axis.transAxes)
        axis.set_xticks([])


def _strips(results: list[dict[str, Any]]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Of each side that decides, its first answers: runs of tokens with what drafted them."""
    return [
        (f"{each['side'].removeprefix(OURS)}, answer {number}", runs)
        for each in results
        for number, runs in enumerate(each.get("drafted_by", [])[:STRIPS], 1)
    ]


def _draw_strips(axis: Any, strips: list[tuple[str, list[tuple[str, int]]]]) -> None:
    """A bar per answer, token by token: what drafted it; white where it was written plainly."""
    from matplotlib.patches import Patch

    names = sorted({source for _, runs in strips for source, _ in runs if source})
    looks = {
        name: (STYLES[at % len(STYLES)][2], HATCHES[at % len(HATCHES)])
        for at, name in enumerate(names)
    }
    for row, (_, runs) in enumerate(strips):
        at = 0
        for source, count in runs:
            shade, hatch = looks.get(source, ("white", ""))
            axis.broken_barh(
                [(at, count)], (row - 0.4, 0.8), facecolor=shade, hatch=hatch, edgecolor="white"
            )
            at += count
        axis.broken_barh([(0, at)], (row - 0.4, 0.8), facecolor="none", edgecolor="black")
    axis.set_yticks(range(len(strips)), [name for name, _ in strips])
    axis.invert_yaxis()
    axis.set_title("what drafted each token; white: none, written plainly", fontsize=12)
    if names:
        axis.legend(
            handles=[
                Patch(facecolor=looks[name][0], hatch=looks[name][1], edgecolor="white", label=name)
                for name in names
            ],
            loc="upper left",
            bbox_to_anchor=(1.02, 1.0),
            fontsize=11,
        )
