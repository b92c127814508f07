"""An account: what speculation cost beyond plain decoding, and may still cost.

Every text has one, and the batch has one: a text waits for what is drafted for the others too. In
passes over one row, by the table of costs, never by a raw pass: a pass that a neighbour held up is
not the draft's fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LATELY = 1 / 32  # weight of the last step in what is true of late
ADVANCE = 0.5  # plain passes that may be lost before anything is won
SHARE = 0.01  # of the plain time so far that may be lost besides
SAVINGS = 3.0  # plain passes won that may be lost again, at most
LOAN, SAVED = 2.0, 64.0  # passes over one row that a source may take at first, and at most
GIVEN = 0.005  # of each plain step, to a source
ENDED = 1 / 8  # weight of the last text that ended in what texts win


@dataclass(slots=True)
class Account:
    """debt: lost so far; below zero, won. plain: what plain decoding would have taken so far."""

    debt: float = 0.0
    plain: float = 0.0
    unit: float = 1.0  # a plain step, in the batch of the last one

    @property
    def left(self) -> float:
        """What a step may cost more than a plain one."""
        return ADVANCE * self.unit + SHARE * self.plain - self.debt

    def step(self, extra: float, won: float, unit: float, steps: int = 1) -> None:
        """Steps cost `extra` more than plain ones, of `unit` each, and brought forward `won`.

        Nothing is forgiven: half of the debt forgiven every 16 steps would let a hopeless source
        take 14% of 1,000 tokens.
        """
        self.unit = unit
        self.plain += steps * unit + won
        self.debt = max(self.debt + extra - won, -SAVINGS * unit)


@dataclass(slots=True)
class Funds:
    """What a dear source may take, whatever texts it drafts for: what it brought, less its costs.

    At first it has a loan, and each plain step gives it a little more: it may be of use by then.
    So one that brings nothing takes little more than that, and leaves what others won to them.
    """

    left: float = LOAN

    def earn(self, worth: float) -> None:
        """Tokens of it were accepted, which brought forward so much, or time has passed."""
        self.left = min(self.left + worth, SAVED)

    def spend(self, took: float) -> None:
        """It was asked, or it read a prompt. What stalled it keeps nobody from it for long."""
        self.left = max(self.left - took, -LOAN)

    def lacks(self, unit: float, wanted: float = 0.0) -> int:
        """Plain steps, of `unit` each, until it may take so much."""
        return max(0, math.ceil((wanted - self.left) / (GIVEN * unit)))


def wait(lacking: float, unit: float) -> int:
    """Plain steps, of `unit` each, until an account that lacks so much has it."""
    return math.ceil(lacking / (SHARE * unit)) if lacking >= 0 else 0


class Books:
    """The account of a batch."""

    def __init__(self) -> None:
        self.account = Account()
        self.late = 0.0  # won by texts that ended, not booked yet
        self._saved = 0.0  # plain steps that a text of late had won when it ended
        self._planned = 0.0, 0.0  # what the last step cost beyond a plain one, and that one

    def begin(self, alone: bool) -> float:
        """A text begins: plain steps that it may lose at first, won by those before it.

        alone: no other is written, so nobody waits for what was lost before.
        """
        saved = min(max(self._saved, 0.0), SAVINGS)
        if alone:
            self.account.debt = -saved * self.account.unit
            self.late, self._planned = 0.0, (0.0, 0.0)  # of texts that have ended
        return saved

    def end(self, saved: float) -> None:
        """A text has ended that won so many plain steps in all."""
        self._saved += (min(saved, SAVINGS / ENDED) - self._saved) * ENDED

    @property
    def left(self) -> float:
        """What may be lost beyond what was planned."""
        return self.account.left - self._planned[0]

    def plan(self, extra: float, unit: float) -> None:
        """A step is about to cost so much beyond a plain one, which takes `unit`."""
        self._planned = extra, unit

    def settle(self, won: float, steps: int) -> None:
        """What was planned is done; plain steps that followed are among `steps`."""
        extra, unit = self._planned
        won, self.late = won + self.late, 0.0
        if unit:
            self.account.step(extra, won, unit, steps)
        self._planned = 0.0, 0.0
