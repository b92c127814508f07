"""Several engines write one batch: who gets which lines, and what becomes of those of a lost one.

Each engine gets lines that begin alike, many at first and few at the end, so that all end together.
Results are written here alone. Knows no Ray: engines are a protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftproof.batch.lines import Line
from draftproof.batch.run import Done

MOST_LOST = 3  # times that all are lost, without an answer between


@dataclass(frozen=True, slots=True)
class Ready:
    """An engine has its model. writer: see `Results.written_by`."""

    writer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Idle:
    """What an engine was given is all told."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An engine is gone, with all that it has not told."""

    why: str


Told = Ready | Idle | Lost | Done


class Engines(Protocol):
    """Numbered from 0, each on its own; what they tell comes in the order in which it happens."""

    def start(self, number: int) -> None:
        """Make one, in the place of a lost one too: it tells `Ready`, or is `Lost`."""

    def give(self, number: int, lines: Sequence[Line]) -> None:
        """Lines for one that has no others: it tells a `Done` of each, then `Idle`."""

    def next(self) -> tuple[int, Told]:
        """Wait for what one of them tells. Raises `ValueError` for what none can do."""


class Shared:
    """Lines for so many engines, of which each writes `places` texts at a time."""

    def __init__(self, lines: Sequence[Line], engines: int, places: int) -> None:
        self._left, self._engines, self._places = deque(lines), engines, places
        self._held: list[dict[str, Line]] = [{} for _ in range(engines)]

    @property
    def over(self) -> bool:
        return not self._left and not any(self._held)

    def take(self, number: int) -> list[Line]:
        """The next ones for this engine: half of its share of what is left, or what fills it."""
        assert not self._held[number]
        share = -(-len(self._left) // (2 * self._engines))
        count = min(len(self._left), max(self._places, share))
        lines = [self._left.popleft() for _ in range(count)]
        self._held[number] = {line.id: line for line in lines}
        return lines

    def done(self, number: int, id: str) -> None:
        del self._held[number][id]

    def give_back(self, number: int) -> None:
        """What a lost engine has not told of is the next that is taken, in its order."""
        self._left.extendleft(reversed(self._held[number].values()))
        self._held[number] = {}


def write(
    lines: Sequence[Line],
    engines: Engines,
    count: int,
    places: int,
    ready: Callable[[Mapping[str, Any]], None],
    told: Callable[[Done], None],
) -> None:
    """All lines, by `count` engines of so many places.

    ready: called with the writer of each engine before it gets lines; told: with what became of
    each line, once. What they raise ends it. Raises `ValueError` where one engine after the other
    is lost and nothing is answered, three for each place.
    """
    shared, idle, lost = Shared(lines, count, places), set[int](), 0
    for number in range(count):
        engines.start(number)
    while not shared.over:
        number, news = engines.next()
        if isinstance(news, Done):
            shared.done(number, news.id)
            told(news)
            lost = 0
        elif isinstance(news, Lost):
            lost += 1
            if lost == MOST_LOST * count:  # a machine takes all of its own with it
                raise ValueError(
                    f"{lost} engines in a row were lost before they answered a line (the last one: "
                    f"{news.why}): what was answered is kept; see whether there is memory for "
                    "them, and run the same command again"
                )
            shared.give_back(number)
            idle.discard(number)
            engines.start(number)
        else:
            if isinstance(news, Ready):
                ready(news.writer)
            idle.add(number)
        for each in sorted(idle):
            if given := shared.take(each):
                idle.remove(each)
                engines.give(each, given)
