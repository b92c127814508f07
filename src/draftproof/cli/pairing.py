"""`draftproof info MODEL --draft D`: whether a draft fits, what it costs, and when it would pay."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from draftproof import analysis
from draftproof.cli import opening
from draftproof.drafting.beside import PADDING
from draftproof.llm import LLM, beside
from draftproof.runners import costs
from draftproof.runners.costs import MOST
from draftproof.runners.measuring import measure
from draftproof.text import load_tokenizer

BATCHES = (1, 8)
LENGTHS = 8  # of the drafts that are thought of
SECONDS = 1.5  # of measuring each of the two


def of_pair(given: SimpleNamespace, llm: LLM) -> dict[str, Any]:
    """Fit for JSON. Both models' passes are measured."""
    sources = opening.sources(SimpleNamespace(heads=None, **vars(given)))
    draft = beside(llm.runner, sources["draft"])
    try:
        target, own = costs.of(llm.runner), costs.of(draft)
        for runner, known in ((llm.runner, target), (draft, own)):
            measure(runner, known, SECONDS)
        found = []
        for batch in BATCHES:
            c = own.seconds(batch) / target.seconds(batch)
            rows = {n: target.seconds(min(MOST, batch * n)) for n in range(1, LENGTHS + 2)}
            needed = analysis.break_even(c, rows, LENGTHS)
            found.append({"batch": batch, "of_a_pass": c, "needed": needed})
        return {
            "draft": given.draft,
            "vocabulary": _vocabulary(given, llm, draft.vocabulary, sources["draft"]),
            "batches": found,
        }
    finally:
        draft.close()


def _vocabulary(given: SimpleNamespace, llm: LLM, size: int, draft: str) -> str:
    options = {"trust_remote_code": given.trust_remote_code}
    theirs, ours = load_tokenizer(draft, None, options), llm.tokenizer
    known = theirs is not None and ours is not None
    same = abs(size - llm.runner.vocabulary) < PADDING
    if same and (not known or theirs.get_vocab() == ours.get_vocab()):
        return "same"
    return "mapped"


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines of a table."""
    mapped = found["vocabulary"] == "mapped"
    more = ": another one, --any-tokenizer maps its text" if mapped else " as the model's"
    yield f"draft {found['draft']}", f"vocabulary {found['vocabulary']}{more}"
    for each in found["batches"]:
        needed = each["needed"]
        when = "never pays" if needed is None else f"pays from {needed:.2f} acceptance on"
        yield (
            f"at batch {each['batch']}",
            f"a drafted token costs {each['of_a_pass']:.2f} of a pass, and {when}",
        )
