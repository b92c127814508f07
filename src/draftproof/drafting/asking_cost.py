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
MOST = 4.0  # times what is known that a call may be thought to have taken
READ = 24.0  # tokens that a draft reads in the time of drafting a further one
TOLD = 3  # calls that went further, behind which it is known what that takes


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
            share = took / max(self.of(count), 1e-9)
            self.first = _late(self.first, share * self.first)
            self.further = _late(self.further, share * self.further)
        else:
            self.first = self.further = _late(self.first, took / count)

    def learn_apart(self, took: float, levels: float, further: float, count: int) -> None:
        """The first of that many levels took so long, what was read among them; then others."""
        share = (self.first + 1e-9) / (self.of(levels) + 1e-9)
        self.first = _late(self.first, took * share)
        if count > 0:
            self._told += 1
            self.further = _late(self.further, further / count)
        elif not self.known:
            self.further = self.first


class Halfway:
    """Asks whether drafts go on, and tells how many levels a first call made, and until when."""

    def __init__(self, goes_on: GoesOn, clock: Callable[[], float]) -> None:
        self.goes_on, self.clock = goes_on, clock
        self.calls, self.at, self.levels = 0, 0.0, 0

    def __call__(self, growths: Sequence[Partial]) -> Sequence[bool]:
        self.calls += 1
        if self.calls == 2:
            self.at, self.levels = self.clock(), max(map(levels, growths))
        return self.goes_on(growths)

    def end(self, at: float, levels: int) -> None:
        """The draft is done, with so many levels."""
        if self.calls < 2:
            self.at, self.levels = at, levels


def reading(missed: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """What it takes to read what was written, and of prompts, in levels.

    missed: tokens of the prompt of each text, and of what was written behind it.
    """
    return sum([each for _, each in missed]) / READ, sum([each for each, _ in missed]) / READ


def _late(known: float, took: float) -> float:
    return known + (min(took, MOST * known + 1e-3) - known) * LATE
