"""What a user is told of decisions: a line when a source begins to draft for a text, or ends."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text

QUIET = 16  # steps without a node of a source behind which it counts as off
MOST = 1000  # lines of one text


def tell(text: Text, sources: Sequence[Source], one: float) -> None:
    """Add to the text's changes what turned with the step that is about to run."""
    step, changes = text.step, text.request.decisions.changes
    if len(step.kept) == 1 and not text.used:
        return
    for number in {*step.drafted_by}:
        if number not in text.used:
            _add(changes, text, number, sources[number], "on", one)
        text.used[number] = text.steps
    for number in [n for n, last in text.used.items() if text.steps - last > QUIET]:
        del text.used[number]
        _add(changes, text, number, sources[number], f"off ({step.why})", one)


def _add(
    changes: list[str], text: Text, number: int, source: Source, state: str, one: float
) -> None:
    if len(changes) < MOST:
        right = source.expected(1, text.recent[number])
        changes.append(
            f"token {len(text.request.output)}: {source.name} {state}: drafting costs "
            f"{source.cost * one * 1000:.2f} ms, the first token is right {right:.0%} of the time"
        )
