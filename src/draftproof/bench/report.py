"""What `draftproof bench` leaves behind: a table, JSON, a picture, Spec-Bench's JSON lines."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from draftproof.bench.compare import Result
from draftproof.bench.suite import Report

HEADINGS = (
    *("T", "batch", "side", "tokens/s", "of plain", "of transformers"),
    *("predicted", "tokens/step", "alpha", "differ"),
)


def cells(each: dict[str, Any], prompts: int) -> list[str]:
    """A result under `HEADINGS`; ranges are those of the rounds."""
    differing = each["differing"]
    return [
        f"{each['temperature']:g}",
        str(each["batch"]),
        each["side"],
        f"{statistics.median(each['tokens_per_s']):.1f} "
        f"({min(each['tokens_per_s']):.1f}-{max(each['tokens_per_s']):.1f})",
        _spread(each["of_plain"]),
        _spread(each["of_transformers"]),
        f"{each['predicted']['speedup']:.2f}x" if each["predicted"] else "-",
        f"{each['tokens_per_step']:.2f}" if each["tokens_per_step"] else "-",
        f"{each['acceptance']['alpha']:.2f}" if each["acceptance"] else "-",
        "other noise" if differing is None else f"{differing} of {prompts}",
    ]


def _spread(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f}x ({found['low']:.2f}-{found['high']:.2f})" if found else "-"


def table(found: dict[str, Any]) -> Group:
    """One table per temperature and batch size, from `Report.as_dict`; fits 80 columns."""
    tables: dict[tuple[float, int], Table] = {}
    for each in found["results"]:
        case = each["temperature"], each["batch"]
        if case not in tables:
            title = f"temperature {case[0]:g}, batch {case[1]}"
            tables[case] = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            tables[case].title = title
            for heading in ("", "tokens/s", "of\nplain", "of trans-\nformers", "pre-\ndicted"):
                tables[case].add_column(heading, justify="right" if heading else "left")
            for heading in ("tokens\n/step", "alpha", "differ"):
                tables[case].add_column(heading, justify="right")
        row = cells(each, found["prompts"])
        speed = each["tokens_per_s"]
        tables[case].add_row(
            each["side"],
            f"{statistics.median(speed):.4g} {_around(statistics.median(speed), speed)}",
            *(_short(each[name]) for name in ("of_plain", "of_transformers")),
            *row[6:9],
            "-" if each["differing"] is None else f"{each['differing']}/{found['prompts']}",
        )
    legend = "Medians of the rounds ± the farthest one; differ: answers unlike plain's."
    return Group(*tables.values(), legend)


def _short(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['median']:.2f} {_around(found['median'], (found['low'], found['high']))}"


def _around(median: float, values: Iterable[float]) -> str:
    return f"±{max(abs(value / median - 1) for value in values):.0%}"


def notes(found: dict[str, Any]) -> Iterable[str]:
    """Sentences under the table: why predictions differ, and who is missing."""
    one = found["pass_seconds"]["1"]
    curve = ", ".join(f"{t}: {s / one:.2f}" for t, s in found["pass_seconds"].items())
    yield f"A pass over one token takes {1e3 * one:.2f} ms; over more, in units of that: {curve}."
    for each in found["results"]:
        if each["why"]:
            yield f"{each['side']}, T={each['temperature']:g}: {each['why']}"
    yield from (f"skipped: {text}" for text in found["skipped"])


def write(report: Report, folder: Path, formats: Iterable[str] = ()) -> list[Path]:
    """JSON, a picture if matplotlib is there, and what `formats` asks for; the paths written.

    Raises `ValueError` where a file cannot be written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{stamp}.json"]
        found = report.as_dict()
        written[0].write_text(json.dumps(found, indent=1) + "\n")
        if "spec-bench" in formats:
            for each in filter(tells_steps, report.results):
                name = each.side.replace(" ", "-").translate({40: None, 41: None})
                path = folder / f"{stamp}-{name}-T{each.temperature:g}-batch{each.batch}.jsonl"
                path.write_text("".join(json.dumps(line) + "\n" for line in spec_bench(each)))
                written.append(path)
        picture = folder / f"{stamp}.png"
        if draw(found, picture):
            written.append(picture)
    except OSError as error:
        raise ValueError(f"cannot write results to {folder}: {error.strerror}") from error
    return written


def tells_steps(result: Result) -> bool:
    """Whether the side says what every step wrote; transformers' assistants do not."""
    return all(words.per_step is not None for each in result.answers for words in each.turns)


def spec_bench(result: Result) -> Iterable[dict[str, Any]]:
    """Lines as Spec-Bench's evaluation writes and reads them (hemingkx/Spec-Bench)."""
    for number, answer in enumerate(result.answers):
        steps = [words.per_step or [] for words in answer.turns]
        yield {
            "question_id": answer.prompt.id,
            "category": answer.prompt.category,
            "answer_id": f"{result.side}-{number}",
            "model_id": result.side,
            "choices": [
                {
                    "index": 0,
                    "turns": answer.texts,
                    "decoding_steps": [len(each) for each in steps],
                    "new_tokens": [len(words.token_ids) for words in answer.turns],
                    "wall_time": answer.seconds,
                    "accept_lengths": [size for each in steps for size in each],
                }
            ],
            "tstamp": time.time(),
        }


def draw(found: dict[str, Any], path: Path) -> bool:
    """Bars of tokens/s and tokens per step, acceptance by position; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    cases = sorted({(each["temperature"], each["batch"]) for each in found["results"]})
    figure = Figure(figsize=(11, 3.2 * len(cases)), layout="constrained")
    for row, case in enumerate(cases):
        mine = [e for e in found["results"] if (e["temperature"], e["batch"]) == case]
        names = [e["side"] for e in mine]
        colours = ["tab:green" if n.startswith("draftproof") else "tab:gray" for n in names]
        speed, steps, accepted = (
            figure.add_subplot(len(cases), 3, 3 * row + column) for column in (1, 2, 3)
        )
        medians = [statistics.median(e["tokens_per_s"]) for e in mine]
        below = [m - min(e["tokens_per_s"]) for m, e in zip(medians, mine, strict=True)]
        above = [max(e["tokens_per_s"]) - m for m, e in zip(medians, mine, strict=True)]
        speed.barh(names, medians, xerr=[below, above], color=colours, capsize=3)
        speed.set_title(f"tokens/s, T={case[0]:g}, batch {case[1]}")
        steps.barh(names, [e["tokens_per_step"] or 0 for e in mine], color=colours)
        steps.set_title("tokens per step")
        steps.set_yticklabels([])
        for axis in (speed, steps):
            axis.invert_yaxis()
        for each in mine:
            if each["acceptance"] is not None:
                shares = each["acceptance"]["cumulative"]
                accepted.plot(range(1, len(shares) + 1), shares, marker="o", label=each["side"])
        accepted.set_title("accepted up to this position")
        accepted.set_ylim(0, 1)
        if accepted.lines:
            accepted.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return True
