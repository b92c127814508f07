"""An account: what speculation cost beyond plain decoding, and may still cost.

Every text has one, and the batch has one: a text waits for what is drafted for the others too. In
passes over one row, by the table of costs, never by a raw pass: a pass that a neighbour held up is
not the draft's fault.
"""

from __future__ import annotations

from dataclasses import dataclass

ADVANCE = 0.5  # plain passes that may be lost before anything is won
SHARE = 0.01  # of the plain time so far that may be lost besides
SAVINGS = 3.0  # plain passes won that may be lost again, at most


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
