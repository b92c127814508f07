"""`draftproof train draft`: from arguments to a trained draft, its card, and what it gave."""

from __future__ import annotations

from types import SimpleNamespace

from draftproof.cli import training
from draftproof.training.jobs.draft import DraftJob, Options


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    options = training.options_of(Options, vars(given), "draft")
    return training.run(DraftJob, options, lambda shown: f"agrees {shown['agree']:.0%}")
