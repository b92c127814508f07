"""Drafts without what a text's grammar forbids: no row of a pass is spent on them."""

from __future__ import annotations

from draftproof import sampling
from draftproof.tree import TokenTree
from draftproof.writing import Writing


def lawful(request: Writing, tree: TokenTree) -> TokenTree:
    """The tree without nodes that the request's grammar forbids, and what hangs from them.

    One with laws stays whole: there it would bias the output to drop a token for what it is. Such
    a draft is drawn from what the grammar allows anyway. Nothing is left where the grammar can no
    longer be followed: that ends the request when the target picks.
    """
    guide = request.history.guide
    if guide is None or tree.laws is not None or len(tree.tokens) == 1:
        return tree
    inner, keep = set(tree.parents), {0}
    for leaf in range(1, len(tree)):
        if leaf not in inner:
            path = tree.path(leaf)
            try:
                fits = guide.valid(request.history.output, [tree.tokens[node] for node in path[1:]])
            except sampling.NoCandidate:
                return tree.truncate(0)
            keep.update(path[1 : 1 + fits])
    return tree.rooted(keep)
