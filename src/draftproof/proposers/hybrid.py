"""Several methods at once: their trees are merged by (parent, token), the likeliest nodes kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.proposers.base import Proposer, bind, release
from draftproof.request import Request
from draftproof.runners.base import Target
from draftproof.tree import TokenTree, merge

UNKNOWN = 0.5  # chance of a token, given its parent, of a part that tells no scores


class Hybrid:
    """What any of its parts proposes. Its trees carry no laws: one-hot is exact.

    max_nodes: tokens of a tree, node 0 included; of more, those of the largest scores are kept,
    each with all that stands before it. None: all.
    """

    def __init__(self, parts: Sequence[Proposer], max_nodes: int | None = None) -> None:
        if not parts:
            raise ValueError("a hybrid needs at least one part")
        if max_nodes is not None and max_nodes < 2:
            raise ValueError(f"max_nodes={max_nodes} leaves nothing to draft: use 2 or more")
        self.parts, self.max_nodes = parts, max_nodes
        self.taps = tuple(sorted({tap for part in parts for tap in part.taps}))
        self.wants_best = any(getattr(part, "wants_best", False) for part in parts)

    def bind(self, target: Target) -> None:
        for part in self.parts:
            bind(part, target)

    def release(self, request: Request) -> None:
        for part in self.parts:
            release(part, request)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        proposed = [map(_scored, part.propose(requests)) for part in self.parts]
        merged = [merge(trees) for trees in zip(*proposed, strict=True)]
        return [tree if self.max_nodes is None else tree.best(self.max_nodes) for tree in merged]


def _scored(tree: TokenTree) -> TokenTree:
    if tree.scores is not None:
        return tree
    return replace(tree, scores=[UNKNOWN**depth for depth in tree.depths])
