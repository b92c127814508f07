"""Tables for a terminal: in columns, or a block of lines for each row where those do not fit.

A row begins with its name; "-" stands for what it has not. Names of columns may have two lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import PaddingDimensions
from rich.table import Table
from rich.text import Text

UNBOUNDED = 10_000  # columns, more than any table takes


def in_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    padding: PaddingDimensions = (0, 1, 0, 0),
) -> Table:
    """names: of all columns but the first."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=padding)
    made.add_column("", no_wrap=True)
    for name in names:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*row)
    return made


def fits(table: Table, width: int) -> bool:
    """Whether it takes at most `width` columns of a terminal: that hangs on what is in it."""
    return Console(width=UNBOUNDED).measure(table).maximum <= width


def stacked(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """A block of lines for each row, without what it has not."""
    flat = [name.replace("-\n", "").replace("\n", "" if "\n/" in name else " ") for name in names]
    size, lines = max(map(len, flat)) + 1, list[str]()
    for name, *values in rows:
        lines.append(name)
        pairs = zip(flat, values, strict=True)
        lines += [f"  {each:<{size}}{value}" for each, value in pairs if value != "-"]
    return Text("\n".join(lines))


def fitting(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """In columns where those fit."""
    made = in_columns(names, rows)
    return made if fits(made, width) else stacked(names, rows)
