"""`draftproof demo`: from arguments to a race of the bundled models."""

from __future__ import annotations

from types import SimpleNamespace

from rich.console import Console

from draftproof.bundled.prompts import PROMPTS
from draftproof.cli import defaults
from draftproof.demo import show

QUICK = {"num_prompts": 2, "max_tokens": 48}


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    defaults.quicken(given, QUICK)
    wanted = show.Options(
        methods=tuple(given.method or ["draft"]),
        prompts=len(PROMPTS) if given.num_prompts is None else given.num_prompts,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        seed=given.seed or 0,
        dtype=given.dtype or "auto",
        runner=given.runner,
        threads=given.threads,
        as_json=given.as_json,
    )
    return show.demo(wanted, Console())
