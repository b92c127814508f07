"""What becomes of a source that fails for a text, or offers what nothing can be made of."""

from __future__ import annotations

import math
from collections.abc import Callable

from draftproof.drafting.sources import LARGEST, Source
from draftproof.drafting.text import Text
from draftproof.tree import TokenTree
from draftproof.writing import Writing, reason


def give_up(text: Text, number: int, source: Source, error: Exception) -> None:
    """The text goes on without the source."""
    text.failed.add(number)
    text.request.decisions.share(source.name).failed += 1
    text.request.warnings.append(f"{source.name} drafts no further: {reason(error)}")
    let_go(source, text.request)


def let_go(source: Source, request: Writing) -> None:
    """The source holds nothing of the request any more; what fails in that is told, no more."""
    try:
        source.drafter.release(request)
    except Exception as error:
        request.warnings.append(f"{source.name} failed: {reason(error)}")


def attempt(call: Callable[[], object], text: Text, number: int, source: Source) -> None:
    """Call a source that did not fail for the text yet."""
    if number not in text.failed:
        try:
            call()
        except Exception as error:
            give_up(text, number, source, error)


def too_large(text: Text, number: int, source: Source, size: int) -> None:
    """It drafts more than is looked at: counted every time, and said once."""
    text.request.decisions.share(source.name).failed += 1
    if number not in text.crowded:
        text.crowded.add(number)
        text.request.warnings.append(
            f"{source.name} drafted {size} tokens at once: of such drafts {LARGEST} are looked at"
        )


def check(tree: TokenTree, request: Writing, vocabulary: int) -> None:
    """Raises `ValueError`: nothing can be made of the tree."""
    tree.check(request.tokens[-1], vocabulary)
    if tree.scores is not None and not all(map(math.isfinite, tree.scores)):
        raise ValueError("a score of the tree is not a number")
