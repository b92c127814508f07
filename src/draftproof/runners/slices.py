"""How much of a long prompt a pass reads beside texts that are written.

A pass with a slice keeps its writers waiting, so slice and drafts together may take some times what
a plain pass takes: of the writers, or of as many texts as wait to be read, where those are more, as
one text that writes is no reason to let fifteen wait.
"""

from __future__ import annotations

import math
from typing import Protocol

from draftproof.runners.curves import attended

GAP, LEAST = 4.0, 8  # plain passes that one with a slice takes; tokens of a slice
APART = 2.0  # mean deviations that a pass may turn out dearer and still keep the limit
LATEST = 0.1  # weight of the last such pass in what is known of how they turn out


class Costs(Protocol):
    """What passes cost, as `runners.costs` learns it; rows, attended: of the planned pass."""

    rows: int
    attended: float

    def seconds(self, rows: int, attended: float = 0) -> float: ...


class Slices:
    """The slices of one runner's passes, by what passes cost.

    Such passes turn out dearer or cheaper than a table says that learns from all passes, and they
    differ from one to the next. A slice leaves room for both, so that most of them, not half, keep
    the limit.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._next: float | None = None  # as `_limit`, of the pass that is not yet planned
        self._limit: float | None = None  # seconds of the planned pass; None: it has no slice
        self._free, self._drafted = 0, 0  # nodes of that pass; those of the last one with a slice
        self._over, self._apart = 0.0, 0.0  # logarithm of taken over expected, and its deviation

    def tokens(
        self, writers: int, readers: int, behind: int, most: int, seconds: float | None = None
    ) -> int:
        """Tokens of prompts, `most` at most, that the pass of so many writers may read besides.

        readers: texts with something to read; behind: what of the longest is read already. seconds:
        that the pass may take; None: `GAP` times as long as a plain one of as many texts as write
        or as read, whichever are more. At least `LEAST`, or the prompt would never end.
        Drafts keep what they took last and may take some more, up to half of it.
        """
        plain = self._costs.seconds(max(writers, readers))
        limit = self._next = GAP * plain if seconds is None else seconds
        low, high = min(LEAST, most), most + self._drafted
        while low < high:
            rows = (low + high + 1) // 2
            if self._takes(writers + rows, attended(rows, behind)) > limit:
                high = rows - 1
            else:
                low = rows
        drafted = min(self._drafted + writers, low // 2) if self._drafted else 0
        self._free = writers if low > LEAST else 0
        return max(min(low - drafted, most), min(LEAST, most))

    def plan(self) -> None:
        """The pass comes for which tokens were last asked, or one that reads no slice."""
        self._limit, self._next = self._next, None

    @property
    def room(self) -> int | None:
        """Nodes that the planned pass may run besides; None: any number.

        One for each writer at least, if the slice can give way: where none was drafted it has taken
        all the time, and leaves it to them in the next pass.
        """
        if self._limit is None:
            return None
        rows, reading = self._costs.rows, self._costs.attended
        nodes, most = self._free, self._drafted + self._free
        while nodes < most and self._takes(rows + nodes + 1, reading) <= self._limit:
            nodes += 1
        return nodes

    def end(self, rows: int, attended: float, seconds: float) -> None:
        """The planned pass ran so many rows, and took so long; its costs are not learnt yet."""
        if self._limit is None:
            return
        self._drafted = max(0, rows - self._costs.rows)
        off = math.log(seconds / self._costs.seconds(rows, attended))
        self._apart += LATEST * (min(1.0, abs(off - self._over)) - self._apart)
        self._over += LATEST * (max(-1.0, min(1.0, off)) - self._over)

    def _takes(self, rows: int, attended: float) -> float:
        """Seconds, of passes that turn out as dear as they often do."""
        dearer = math.exp(max(0.0, self._over + APART * self._apart))
        return self._costs.seconds(rows, attended) * dearer
