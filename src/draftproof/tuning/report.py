"""What was found, as a table, in words and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from draftproof import analysis, tables
from draftproof.out_folders import save_figure
from draftproof.pictures import STYLES
from draftproof.tuning.ranking import Row
from draftproof.tuning.run import Tuned

SHOWN = 8  # settings of a case
NAMES = ("tokens\n/step", "seconds", "predicted", "95%", "measured", "differ")


def table(tuned: Tuned, width: int) -> Group:
    """The fastest settings of each temperature and batch size; stacked where they do not fit."""
    parts: list[RenderableType] = []
    for (temperature, batch), rows in tuned.cases().items():
        shown = [_cells(row) for row in _shown(rows)]
        parts.append(Text(f"\ntemperature {temperature:g}, batch {batch}: {len(rows)} settings"))
        parts.append(tables.fitting(NAMES, shown, width))
    return Group(*parts, Text(LEGEND))


LEGEND = (
    "Speed-ups over plain decoding. Predicted: by replay and measured costs, with the interval for "
    "other prompts of the kind. Measured: run in turn with plain, in all rounds; the slower "
    "half is left out behind each round. Differ: texts unlike plain's."
)


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The fastest, whatever was run, the controller, and plain decoding."""
    return [
        row
        for number, row in enumerate(rows)
        if number < SHOWN or row.measured is not None or row.choice.decides or not row.choice.parts
    ]


def _cells(row: Row) -> list[str]:
    interval = "-" if row.low is None or row.high is None else f"{row.low:.2f}-{row.high:.2f}"
    return [
        row.choice.name,
        f"{row.tokens_per_step:.2f}",
        f"{row.seconds:.3g}",
        f"{row.speedup:.2f}x",
        interval,
        "-" if row.measured is None else f"{row.measured:.2f}x",
        "-" if row.differing is None else str(row.differing),
    ]


def advice(tuned: Tuned) -> list[str]:
    """In words: what pays where, and from which acceptance on."""
    lines = []
    for (temperature, batch), rows in tuned.cases().items():
        best = max(rows, key=lambda row: row.measured or 0.0)
        best = rows[0] if best.measured is None else best
        speed = best.speedup if best.measured is None else best.measured
        where = f"at temperature {temperature:g} and batch {batch}"
        if not best.choice.parts or speed <= 1:
            lines.append(f"Nothing pays {where}: write plainly.")
        else:
            how = "predicted" if best.measured is None else "measured"
            lines.append(f"{best.choice.name} pays most {where}: {speed:.2f}x ({how}).")
        if best.by_group:
            told = ", ".join(f"{kind} {x:.2f}x" for kind, x in best.by_group.items())
            lines.append(f"By kind of prompt, predicted: {told}.")
    return lines + [*_break_even(tuned)] + [f"Not tried, out of time: {x}." for x in tuned.untried]


def _break_even(tuned: Tuned) -> Iterable[str]:
    cost = {int(rows): seconds for rows, seconds in tuned.costs["costs"].items()}
    for source in tuned.sources:
        right, c, call = (source[k] for k in ("first_right", "of_a_pass", "call_of_a_pass"))
        if not source["grows"]:
            continue
        name = f"{source['name']} costs {call:.2f} of a pass, and {c:.2f} for each token"
        needed = analysis.break_even(c, cost, call=call)
        heat = f"at temperature {source['temperature']:g}"
        if needed is None:
            yield f"{name}: that never pays, use a smaller draft."
        else:
            verdict = "enough" if right > needed else "too little"
            yield (
                f"{name}: by these costs it pays from {needed:.2f} acceptance on at batch 1, and "
                f"has {right:.2f} {heat}, {verdict}."
            )


def draw(tuned: Tuned, path: Path, title: str) -> bool:
    """Speed-up over the length of drafts, by batch size; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    cases = tuned.cases()
    figure = Figure(figsize=(5 * len(cases), 4.2), layout="constrained")
    figure.suptitle(title, fontsize=12)
    axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for axis, ((temperature, batch), rows) in zip(axes, cases.items(), strict=True):
        for number, (name, points) in enumerate(_curves(rows).items()):
            marker, dash, shade = STYLES[number % len(STYLES)]
            lengths = sorted(points)
            speeds = [points[n].speedup for n in lengths]
            axis.plot(lengths, speeds, marker=marker, linestyle=dash, color=shade, label=name)
        for row in rows:
            if row.measured is not None:
                at = max(_length(part.options) for part in row.choice.parts)
                axis.plot(at, row.measured, "x", color="black", markersize=11)
                axis.annotate("measured", (at, row.measured), fontsize=8)
        axis.axhline(1, color="#888888", linewidth=1)
        axis.set_title(f"T={temperature:g}, batch {batch}")
        axis.set_xlabel("tokens of a draft")
        axis.set_ylabel("of plain decoding")
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)
    return True


def _curves(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """Of each source alone the fastest setting of each length."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if len(row.choice.parts) == 1 and not row.choice.decides:
            part = row.choice.parts[0]
            method, model, quantize = part.of
            name = " ".join(filter(None, (method, model and Path(model).name, quantize)))
            found.setdefault(name, {}).setdefault(_length(part.options), row)
    return found


def _length(options: Iterable[tuple[str, Any]]) -> int:
    given = dict(options)
    return int(given.get("num_draft_tokens") or given.get("nodes") or len(given.get("tree", ())))
