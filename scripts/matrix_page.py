"""The tables of docs/what_runs.md, and how the verdicts of the matrix are committed.

Knows docs/what_runs/matrix.json and the axes, and nothing of the package.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matrix_axes import DOORS, EXTRAS, KINDS, METHODS, PYTHON, RULES, Cell, every
from measured import load, markdown

NEVER = "encoder-decoder", "foreign"  # is refused, whatever else is asked for
CODES = {"equal": "=", "runs": "~", "refused": "-", "FAIL": "!"}


def kept(found: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What is committed: verdicts by door, kind and method, and every sentence once."""
    groups: dict[str, dict[str, list[str]]] = {}
    said: dict[str, list[str]] = {}
    for name, each in found.items():
        door, kind, method, *rest = name.split("/")
        code = CODES[each["verdict"]]
        if code == "-":
            said.setdefault(each["why"], []).append(name)
        groups.setdefault(f"{door}/{kind}/{method}", {}).setdefault(code, []).append("/".join(rest))
    cells = {
        name: {code: "|".join(rest) for code, rest in sorted(each.items())}
        for name, each in groups.items()
    }
    refusals = {why: {"cells": len(names), "as": names[0]} for why, names in sorted(said.items())}
    return {**about, "cells": cells, "refusals": refusals}


def verdicts(committed: Mapping[str, Any]) -> dict[str, str]:
    """The verdict of each committed cell, by its name."""
    names = {code: name for name, code in CODES.items()}
    return {
        f"{group}/{rest}": names[code]
        for group, each in committed["cells"].items()
        for code, listed in each.items()
        for rest in listed.split("|")
    }


def shown(some: Iterable[str]) -> str:
    """Verdicts in one field: what all are, or how many were refused or failed too."""
    counts = Counter(CODES[each] for each in some)
    if not counts:
        return ""
    signs = [code for code in "=~" if counts[code]]
    if refused := counts["-"]:
        alone = refused == counts.total()
        signs.append("refused" if alone else f"refused {refused} of {counts.total()}")
    if failed := counts["!"]:
        signs.append(f"FAIL {failed}")
    return " ".join(signs)


def table(
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    of: Callable[[Cell, str, str], bool],
    without: tuple[str, str] | None = None,
) -> str:
    """A field for each row and column, of the cells that `of` takes for it.

    without: a kind and a method that are told of elsewhere.
    """
    told = verdicts(load("what_runs/matrix"))
    known = {cell: told[cell.name] for cell in map(Cell.named, told) if cell[1:3] != without}
    lines = [
        [
            row,
            *(shown(v for cell, v in known.items() if of(cell, row, column)) for column in columns),
        ]
        for row in rows
    ]
    return markdown((corner, *columns), lines)


def about() -> str:
    run = load("what_runs/matrix")
    counts = Counter(verdicts(run).values())
    told = ", ".join(f"{counts[name]:,} {name}" for name in CODES if counts[name])
    tried, every_one = counts.total(), len(every())
    cells = f"{tried:,} cells" if tried == every_one else f"{tried:,} of {every_one:,} cells"
    return (
        f"{cells}: {told}. {run['date']}, {run['commit']}, "
        f"{run['processor']}; `python scripts/matrix.py`.\n"
    )


def methods() -> str:
    def of(cell: Cell, method: str, kind: str) -> bool:
        return (cell.door, cell.kind, cell.method, cell.extra) == (PYTHON, kind, method, "-")

    return table("method", METHODS, KINDS, of)


def extras() -> str:
    def of(cell: Cell, extra: str, kind: str) -> bool:
        return (cell.door, cell.kind, cell.extra) == (PYTHON, kind, extra)

    return table("extra", EXTRAS[1:], KINDS, of, NEVER)


def doors() -> str:
    def of(cell: Cell, extra: str, door: str) -> bool:
        return (cell.door, cell.extra) == (door, extra)

    return table("extra", EXTRAS, DOORS, of, NEVER)


def rules() -> str:
    def of(cell: Cell, rule: str, door: str) -> bool:
        return (cell.door, cell.rule, cell.extra) == (door, rule, "-")

    return table("rule", RULES, DOORS, of, NEVER)


def kinds() -> str:
    def of(cell: Cell, kind: str, door: str) -> bool:
        return (cell.door, cell.kind, cell.extra) == (door, kind, "-")

    return table("kind", KINDS, DOORS, of, NEVER)


def refusals() -> str:
    """Every sentence, those that differ in a name alone once; with how many cells it answered."""
    merged: dict[str, list[Any]] = {}
    for why, each in load("what_runs/matrix")["refusals"].items():
        said = re.sub(r"here drafts [\w+ -]+", "here drafts ...", why)
        merged.setdefault(said, []).append(each)
    rows = [
        [said.replace("|", "\\|"), str(sum(each["cells"] for each in some)), some[0]["as"]]
        for said, some in merged.items()
    ]
    return markdown(
        ("what is said", "cells", "one of them"), sorted(rows, key=lambda r: -int(r[1]))
    )


MATRIX: dict[str, Callable[[], str]] = {
    "matrix": about,
    "matrix-methods": methods,
    "matrix-extras": extras,
    "matrix-doors": doors,
    "matrix-rules": rules,
    "matrix-kinds": kinds,
    "matrix-refusals": refusals,
}
