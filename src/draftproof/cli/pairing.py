"""`draftproof info MODEL --draft D`: whether a draft fits, what it costs, and when it would pay."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from draftproof.cli import opening
from draftproof.llm import LLM
from draftproof.tuning import candidates

BATCHES = (1, 8)


def of_pair(given: SimpleNamespace, llm: LLM) -> dict[str, Any]:
    """Fit for JSON. Both models' passes are measured."""
    sources = opening.sources(SimpleNamespace(heads=None, **vars(given)))
    candidates.measured(llm)
    found = candidates.judged(llm, sources["draft"], None, BATCHES, given.trust_remote_code)
    return {"draft": given.draft, "vocabulary": found.vocabulary, "batches": found.batches}


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines of a table."""
    mapped = found["vocabulary"] == "mapped"
    more = ": another one, --any-tokenizer maps its text" if mapped else " as the model's"
    yield f"draft {found['draft']}", f"vocabulary {found['vocabulary']}{more}"
    for each in found["batches"]:
        yield f"at batch {each['batch']}", f"a drafted token {paying(each)}"


def paying(batch: dict[str, Any]) -> str:
    """What a drafted token costs, and when it pays."""
    needed = batch["needed"]
    when = "never pays" if needed is None else f"pays from {needed:.2f} acceptance on"
    if (more := batch["needed_for_a_quarter"]) is not None:
        when += f", a quarter from {more:.2f} on"
    return f"costs {batch['of_a_pass']:.2f} of a pass, and {when}"


def listed(found: candidates.Judged) -> str:
    """A candidate in one line."""
    told = [f"at batch {each['batch']} a token {paying(each)}" for each in found.batches]
    left_out = [f"left out: {found.why}"] if found.why else []
    vocabulary = [] if found.refused else [f"vocabulary {found.vocabulary}"]
    return f"{found.name}: {'; '.join([*vocabulary, *told, *left_out])}"
