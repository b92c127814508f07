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
    if min(tree.tokens) < 0 or max(tree.tokens) >= vocabulary:
        raise ValueError(f"the tree holds a token outside of the vocabulary of {vocabulary}")
    if tree.tokens[0] != request.tokens[-1]:
        raise ValueError("node 0 of the tree is not the request's last token")
    if tree.scores is not None and not all(map(math.isfinite, tree.scores)):
        raise ValueError("a score of the tree is not a number")
