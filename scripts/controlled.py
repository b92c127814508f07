"""The tables of docs/control.md, of the runs of benchmarks/never_slower that are kept.

Knows the JSON files under docs/never_slower; of a run that nobody has made yet it says so.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from measured import ROOT, load, machine, markdown

Interval = Sequence[float]


def told(interval: Interval | None, least: float = 0.0) -> str:
    """Middle and 95% interval; bold where it is wholly below `least`."""
    if interval is None:
        return "-"
    middle, low, high = interval
    text = f"{middle:.3f} ({low:.3f}-{high:.3f})"
    return f"**{text}**" if high < least else text


def of_a_run(name: str, table: Callable[[Any], str]) -> str:
    if not (ROOT / "docs" / "never_slower" / f"{name}.json").exists():
        return "Not measured yet.\n"
    return table(load(f"never_slower/{name}"))


def never_slower(run: Any) -> str:
    """Every cell of never_slower.py."""
    rows = [
        [
            name,
            str(cell["turns"]),
            told(cell["auto"], 0.98),
            told(cell.get("off"), 0.99),
            f"{cell['tokens_per_step']:.2f}",
        ]
        for name, cell in run["cells"].items()
    ]
    means = [f"{run['means'][side]:.3f}" for side in ("auto", "off")]
    headings = ("cell", "turns", "plain / auto", "plain / off", "tokens/step")
    differing = sum(cell["differing"] for cell in run["cells"].values())
    return (
        markdown(headings, [*rows, [f"mean of {len(rows)}", "", *means, ""]])
        + f"\n{', '.join(run['dates'])}, {', '.join(run['processors'])}, 2 threads; seconds of "
        "plain decoding over those of `auto`, and of `auto` with `speculate=False`, with 95% "
        f"intervals; bold: wholly below 0.98, and 0.99. Texts that differ: {differing}.\n"
    )


def hindsight(run: Any) -> str:
    """Every cell of hindsight.py."""
    rows = [
        [
            name,
            f"{cell['texts']} x {cell['rounds']}",
            cell["best"],
            told(cell["auto"]),
            told(cell["of_plain"]),
            f"{cell['tokens_per_step']:.2f}",
        ]
        for name, cell in run["cells"].items()
    ]
    headings = ("cell", "texts x rounds", "best fixed", "auto / best", "auto / plain")
    cells = run["cells"].values()
    return (
        markdown((*headings, "tokens/step"), rows) + f"\n{joined(cell['date'] for cell in cells)}, "
        f"{joined(cell['processor'] for cell in cells)}; speed of `auto` over that of the fastest "
        "of four fixed settings, plain decoding and the best three of a replay, with 95% intervals "
        f"of paired calls. Texts that differ: {sum(cell['differing'] for cell in cells)}.\n"
    )


def recorded(run: Any) -> str:
    """Every row of recorded.py, and the means."""
    rows = [
        [
            re.sub(r", batch \d+", "", row["cell"]),
            str(row["batch"]),
            f"{row['plain'] / row['auto']:.3f}",
            row["setting"],
            f"{row['best'] / row['auto']:.3f}",
            f"{row['tokens_per_step']:.2f}",
        ]
        for row in run["rows"]
    ]
    means = [
        f"{statistics.fmean(row[side] / row['auto'] for row in run['rows']):.3f}"
        for side in ("plain", "best")
    ]
    headings = ("texts", "batch", "plain / auto", "best fixed", "best / auto", "tokens/step")
    return (
        markdown(headings, [*rows, ["mean", "", means[0], "", means[1], ""]])
        + f"\n{run['date']}, {machine(run['machine'])}; {run['num_prompts']} texts of "
        f"{run['max_tokens']} tokens; seconds of plain decoding, and of the best source with fixed "
        f"settings, over those of `auto`, where a look at the clock takes {run['look_us']:g} "
        "microseconds. Nothing is timed.\n"
    )


def joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def deciding(run: Any) -> str:
    """Every row of deciding.py."""
    rows = [
        [
            row["text"],
            str(row["batch"]),
            f"{row['plain']:.0f}",
            f"{row['off']:+.0f}",
            f"{row['deciding']:+.0f}",
            f"{row['drafting']:.0f}",
            f"{row['tokens_per_step']:.2f}",
        ]
        for row in run["rows"]
    ]
    headings = ("text", "batch", "plain", "off", "deciding", "drafting", "tokens/step")
    return (
        markdown(headings, rows)
        + f"\n{run['date']}, {machine(run['machine'])}; microseconds of the processor for a step, "
        f"the least of {run['rounds']} rounds, where a pass over one row takes {run['pass_ms']:g} "
        "ms. Plain: the whole step without its pass; off, deciding: beyond that, with "
        "`speculate=False` and with `auto`; drafting comes on top.\n"
    )


def gap(run: Any) -> str:
    """What reader.py gap measured."""
    runs = run["runs"]
    rows = [
        [
            name,
            f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})",
        ]
        for name, each in (
            ("longest gap of a writer, in plain passes", [one["gap"] for one in runs]),
            ("a plain pass of the writers, ms", [one["plain_pass_ms"] for one in runs]),
            ("the reader's first token, s", [one["first_token_s"] for one in runs]),
        )
    ]
    return (
        markdown(("", "median (range)"), rows)
        + f"\n{run['date']}, {machine(run['machine'])}; {run['model']}, a prompt of "
        f"{run['tokens']} tokens among 4 writers, {len(runs)} runs.\n"
    )


def latency(run: Any) -> str:
    """What reader.py latency measured."""
    modes = [
        [mode, f"{statistics.median(one[mode] for one in run['ms_per_token']):.2f}"]
        for mode in ("throughput", "latency")
    ]
    return (
        markdown(("objective", "ms per token of a text"), modes)
        + f"\n{run['date']}, {machine(run['machine'])}; {run['cell']}, "
        f"{len(run['ms_per_token'])} turns. Latency over throughput: {told(run['ratio'])}.\n"
    )


CONTROLLED: dict[str, Callable[[], str]] = {
    "never-slower": lambda: of_a_run("cells", never_slower),
    "never-slower-avx2": lambda: of_a_run("cells_avx2", never_slower),
    "hindsight": lambda: of_a_run("hindsight", hindsight),
    "recorded": lambda: of_a_run("recorded", recorded),
    "deciding": lambda: of_a_run("deciding", deciding),
    "gap": lambda: of_a_run("gap", gap),
    "latency": lambda: of_a_run("latency", latency),
}
