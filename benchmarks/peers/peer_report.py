"""What `cpu_peers.py` leaves behind: tables, one JSON file, and pictures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from peer_parts import REFERENCE, Case, Found

COLOURS = ("tab:green", "tab:gray", "tab:blue", "tab:orange")


def tables(found: Found, prompts: int) -> Iterable[Table]:
    """Passes, prompts and writing, as far as they were measured."""
    costs = {name: pass_medians(sizes) for name, sizes in found.passes.items()}
    costs = {name: medians for name, medians in costs.items() if medians}
    if costs:
        yield _passes(costs)
    reads = {name: each for name, each in found.prompts.items() if all(each.values())}
    if reads:
        yield _reads(reads)
    if found.cases:
        yield _writing(found.cases, prompts)


def pass_medians(sizes: Mapping[int, list[list[float]]]) -> dict[int, float]:
    """Seconds of a pass by tokens: the median over rounds of the median in a turn."""
    return {
        size: statistics.median(statistics.median(turn) for turn in turns)
        for size, turns in sizes.items()
        if turns
    }


def _table(title: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _passes(costs: Mapping[str, Mapping[int, float]]) -> Table:
    title = "ms of a pass over so many tokens"
    sizes = list(next(iter(costs.values())))
    table = _table(title, "", *map(str, sizes))
    for name, medians in costs.items():
        one = medians[min(medians)]
        shown = (f"{1e3 * s:.2f}\n{s / one:.2f}x" for s in medians.values())
        table.add_row(name, *shown)
    return table


def _reads(reads: Mapping[str, Mapping[int, list[float]]]) -> Table:
    lengths = list(next(iter(reads.values())))
    table = _table("reading a prompt: tokens/s", "", *(f"{length} tokens" for length in lengths))
    for name, each in reads.items():
        table.add_row(name, *(f"{n / statistics.median(took):.0f}" for n, took in each.items()))
    return table


def _writing(cases: Iterable[Case], prompts: int) -> Table:
    headings = "", "method", "length", "tokens/s", "low - high", "of ours", "differ"
    table = _table("writing", *headings)
    table.columns[4].no_wrap = True
    ours = {case.method: case.tokens_per_s for case in cases if case.side == REFERENCE}
    for case in cases:
        rates = case.tokens_per_s
        of_ours = "-"
        if case.method in ours:
            pairs = zip(rates, ours[case.method], strict=True)
            of_ours = f"{statistics.median(a / b for a, b in pairs):.2f}x"
        table.add_row(
            case.side,
            "plain" if case.method == "none" else case.method,
            str(case.length or "-"),
            f"{statistics.median(rates):.1f}",
            f"{min(rates):.1f} - {max(rates):.1f}",
            of_ours,
            "-" if case.differing is None else f"{case.differing} of {prompts}",
        )
    return table


def write(found: Found, about: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    """The JSON file, and the pictures if matplotlib is there; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{stem}.json"]
    costs = {name: pass_medians(sizes) for name, sizes in found.passes.items()}
    content = {**about, **asdict(found), "pass_medians": costs}
    written[0].write_text(json.dumps(content, indent=1) + "\n")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return written
    title = f"{about['options']['target']}, {about['options']['precision']}"
    figures: dict[str, Any] = {}
    if any(costs.values()):
        figures["passes"] = Figure(figsize=(11, 4), layout="constrained")
        _draw_passes(figures["passes"], {n: c for n, c in costs.items() if c}, title)
    if found.cases:
        figures["writing"] = Figure(figsize=(9, 1 + 0.3 * len(found.cases)), layout="constrained")
        _draw_writing(figures["writing"], found.cases, title)
    for name, figure in figures.items():
        written.append(folder / f"{stem}-{name}.png")
        figure.savefig(written[-1], dpi=110)
    return written


def _draw_passes(figure: Any, costs: Mapping[str, Mapping[int, float]], title: str) -> None:
    relative, absolute = figure.subplots(1, 2)
    for (name, medians), colour in zip(costs.items(), COLOURS, strict=False):
        sizes, one = list(medians), medians[min(medians)]
        style = {"marker": "o", "color": colour, "label": name}
        relative.plot(sizes, [s / one for s in medians.values()], **style)
        absolute.plot(sizes, [1e3 * s for s in medians.values()], **style)
    relative.set_ylabel("cost of a pass, in passes over one token")
    absolute.set_ylabel("ms")
    for axis in (relative, absolute):
        axis.set_xlabel("tokens in the pass")
        axis.set_title(title)
        axis.set_ylim(0)
        axis.legend()


def _draw_writing(figure: Any, cases: list[Case], title: str) -> None:
    axis = figure.subplots()
    sides = list(dict.fromkeys(case.side for case in cases))
    colours = dict(zip(sides, COLOURS, strict=False))
    names, medians, below, above = [], [], [], []
    for case in cases:
        rates = case.tokens_per_s
        method = "plain" if case.method == "none" else f"{case.method} ({case.length})"
        names.append(f"{case.side} {method}")
        medians.append(statistics.median(rates))
        below.append(medians[-1] - min(rates))
        above.append(max(rates) - medians[-1])
    bars = [colours[case.side] for case in cases]
    axis.barh(names, medians, xerr=[below, above], color=bars, capsize=3)
    axis.invert_yaxis()
    axis.set_xlabel("tokens/s, median of the rounds, lowest and highest")
    axis.set_title(title)
