"""Whoever looks on while something is trained; the command line shows it."""

from __future__ import annotations

from typing import Protocol

from draftproof.training.trainer import Plan, State


class Watch(Protocol):
    """Is called as training goes on, and may ask it to stop."""

    def phase(self, text: str) -> None:
        """Another part begins."""
        ...

    def share(self, done: float) -> None:
        """So much of the phase is done, 0 to 1."""
        ...

    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None:
        """A step was taken; shown: its figures by name."""
        ...

    def line(self, text: str) -> None:
        """Something worth keeping."""
        ...

    def stopped(self) -> bool:
        """Whether training is to end here, with a checkpoint."""
        ...
