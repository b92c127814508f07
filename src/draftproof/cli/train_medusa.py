"""`draftproof train medusa`: from arguments to trained heads, their card, and what they gave."""

from __future__ import annotations

from types import SimpleNamespace

from draftproof.cli import training
from draftproof.training.jobs.medusa import HeadsJob, Options


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    options = training.options_of(Options, vars(given), "heads")
    return training.run(HeadsJob, options, _accuracies)


def _accuracies(shown: dict[str, float]) -> str:
    shares = (value for name, value in shown.items() if name.startswith("head "))
    return "heads " + " ".join(f"{share:.0%}" for share in shares)
