"""What becomes of a source that fails for a text, or offers what nothing can be made of."""

from __future__ import annotations

import math

from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text
from draftproof.tree import TokenTree
from draftproof.writing import Writing


def give_up(text: Text, number: int, source: Source, error: Exception) -> None:
    """The text goes on without the source."""
    text.failed.add(number)
    said = " ".join(str(error).split())
    text.request.warnings.append(
        f"{source.name} drafts no further: {type(error).__name__}: {said}".rstrip(": ")
    )
    try:
        source.drafter.release(text.request)
    except Exception as failure:
        text.request.warnings.append(f"{source.name} failed: {type(failure).__name__}: {failure}")


def check(tree: TokenTree, request: Writing, vocabulary: int) -> None:
    """Raises `ValueError`: nothing can be made of the tree."""
    tree.check(request.tokens[-1], vocabulary)
    if tree.scores is not None and not all(map(math.isfinite, tree.scores)):
        raise ValueError("a score of the tree is not a number")
