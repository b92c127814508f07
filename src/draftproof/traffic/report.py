"""What `draftproof load` says: a table with a column for each load, and lines below it.

Made of what `summary` gives, so that a file of results can be shown again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from draftproof.traffic.summary import PERCENTILES

NAMES, COLUMN = 22, 13  # columns of the terminal, for what stands left and for each load
TIMES = {
    "first_token_ms": "first token",
    "per_token_ms": "per token",
    "whole_ms": "end to end",
    "longest_gap_ms": "longest pause",
}
BUSY = 0.8  # of a core: beyond it the client is in the way of what it measures
LATE_MS = 20.0  # that calls are late, at the 99th percentile


def table(levels: Sequence[dict[str, Any]], width: int, limited: bool) -> Group:
    """As many loads beside each other as `width` has place for. limited: there are limits."""
    beside = max(1, (width - NAMES) // COLUMN)
    groups = [levels[at : at + beside] for at in range(0, len(levels), beside)]
    return Group(*(_table(group, limited) for group in groups))


def _table(levels: Sequence[dict[str, Any]], limited: bool) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    drawn.add_column("")
    for level in levels:
        drawn.add_column(level["level"], justify="right")
    rows = [_rows(level, limited) for level in levels]
    for name in rows[0]:
        drawn.add_row(name, *(row[name] for row in rows))
    return drawn


def _rows(level: dict[str, Any], limited: bool) -> dict[str, str]:
    """What a load took, by the name of the row."""
    rows = {
        "calls": str(level["calls"]),
        "failed": str(sum(level["failures"].values())),
        "tokens/s": f"{level['tokens_per_s']:.1f}",
        "calls/s": f"{level['calls_per_s']:.2f}",
    }
    for field, name in TIMES.items():
        for p in PERCENTILES:
            times = level[field]
            title = f"{name}, ms" if p == PERCENTILES[0] else " " * len(f"{name}, ms")
            rows[f"{title} p{p}"] = "-" if times is None else f"{times[f'p{p}']:.1f}"
    if limited:
        rows |= {"within limits": f"{level['good']:.0%}", "of them/s": f"{level['good_per_s']:.2f}"}
    rows["prompt tokens cached"] = f"{level['cached']:.0%}"
    rows["client, of a core"] = f"{level['client']['of_a_core']:.1%}"
    return rows


def notes(levels: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What a reader of the table has to know."""
    for level in levels:
        for kind, count in level["failures"].items():
            yield f"{level['level']}: {count} of {level['calls']} failed, {kind}"
        if level["client"]["of_a_core"] > BUSY:
            yield f"{level['level']}: the client itself was busy, so its times are too long"
        late = level["late_ms"]
        if late is not None and late["p99"] > LATE_MS:
            yield f"{level['level']}: calls were made up to {late['p99']:.0f} ms late (p99)"


def failures(answers: Sequence[Any]) -> str | None:
    """One sentence about all that failed, with what most of them say; None if nothing did."""
    failed = [answer for answer in answers if answer.fault is not None]
    if not failed:
        return None
    said, _ = Counter(answer.error for answer in failed).most_common(1)[0]
    return f"{len(failed)} of {len(answers)} calls failed: {said}"
