"""What it takes to ask a source: a first token, and each further level of a draft.

A draft model is called behind a pass that left nothing of it in the processor's caches, and reads
what it missed; then it drafts each further token in a fraction of that time. Who knows one number
alone takes a long draft for as dear as so many short ones, and never drafts one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.drafting.base import GoesOn, Partial
from draftproof.drafting.growth import levels

LATE = 1 / 8  # weight of the latest
LEAST = 1e-9  # by a clock that stands still nothing takes any time
MOST = 4.0  # times what is known that a call may be thought to have taken
READ = 24.0  # tokens that a draft reads in the time of drafting a further one
TOLD = 3  # calls that went further, behind which it is known what that takes

Call = tuple[float, int]  # passes over one row, and levels that they made


class AskingCost:
    """In passes over one row. first: of a token. further: of a level more, or of a text more.

    grows: a draft has levels; else each text takes what the first one takes.
    """

    def __init__(self, first: float, grows: bool) -> None:
        self.first, self.further, self.grows = first, first, grows
        self._told = 0

    @property
    def known(self) -> bool:
        """Whether enough calls went beyond a first token."""
        return self._told >= TOLD or not self.grows

    def of(self, count: float) -> float:
        """Of a draft of so many levels, or of drafts for so many texts."""
        return self.first + (count - 1) * self.further

    def learn(self, took: float, count: float) -> None:
        """So many levels or texts took so long in all."""
        if self.grows:
            share = took / (self.of(count) + count * LEAST)
            self.first = _late(self.first, share * (self.first + LEAST))
            self.further = _late(self.further, share * (self.further + LEAST))
        else:
            self.first = self.further = _late(self.first, took / count)

    def learn_apart(self, first: Call, further: Call, read: float) -> None:
        """A first call, with which was read as much as so many levels take; then others."""
        took, levels = first
        made = self.of(levels) + levels * LEAST
        drafting = made / (made + read * self.further)
        if read < READ:  # which may take less than is thought
            drafting = max(drafting, 0.5)
        self.first = _late(self.first, took * drafting * (self.first + LEAST) / made)
        took, count = further
        if count > 0:
            self._told += 1
            self.further = _late(self.further, took / count, max(LATE, 1 / self._told))
        elif not self._told:
            self.further = self.first


class Halfway:
    """Asks whether drafts go on, and tells how many levels a first call made, and until when."""

    def __init__(self, goes_on: GoesOn, clock: Callable[[], float]) -> None:
        self.goes_on, self.clock = goes_on, clock
        self.at, self.levels = 0.0, 0

    def __call__(self, growths: Sequence[Partial]) -> Sequence[bool]:
        if not self.levels and (made := max(map(levels, growths))):
            self.at, self.levels = self.clock(), made
        return self.goes_on(growths)

    def end(self, at: float, levels: int) -> None:
        """The draft is done, with so many levels."""
        if not self.levels:
            self.at, self.levels = at, levels


def reading(missed: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """What it takes to read what was written, and of prompts, in levels.

    missed: tokens of the prompt of each text, and of what was written behind it.
    """
    return sum([each for _, each in missed]) / READ, sum([each for each, _ in missed]) / READ


def _late(known: float, took: float, weight: float = LATE) -> float:
    return known + (min(took, MOST * known + 1e-3) - known) * weight
