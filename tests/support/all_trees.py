"""All trees there are, random ones, and the recurrences as the papers write them."""

from __future__ import annotations

import functools
from random import Random

from hypothesis import strategies as st

import tiny
from draftproof.tree import TokenTree

Nested = tuple["Nested", ...]  # a tree as the tuple of its children
rates = st.floats(0, 1)


@functools.cache
def forests(nodes: int, branches: int, depth: int) -> list[Nested]:
    """All ordered sequences of at most `branches` trees of together `nodes` nodes."""
    if nodes == 0:
        return [()]
    if branches == 0 or depth == 0:
        return []
    return [
        (first, *others)
        for n in range(1, nodes + 1)
        for first in forests(n - 1, ALL_RANKS, depth - 1)
        for others in forests(nodes - n, branches - 1, depth)
    ]


ALL_RANKS = 3  # children that any node of an enumerated tree may have


def trees(nodes: int, depth: int) -> list[Nested]:
    return forests(nodes - 1, ALL_RANKS, depth)


def value(tree: Nested, p: list[float]) -> float:
    """Expected tokens of the walk: one for being here, and those of the child it goes on to."""
    return 1 + sum(p[k] * value(child, p) for k, child in enumerate(tree))


def depth_of(parents: list[int]) -> int:
    return max(TokenTree([0] * len(parents), parents).depths)


def random_tree(rng: Random, root: int, nodes: int, vocabulary: int = tiny.VOCABULARY) -> TokenTree:
    parents = [-1] + [rng.choice([i - 1, rng.randrange(i)]) for i in range(1, nodes)]
    return TokenTree([root, *(rng.randrange(3, vocabulary) for _ in range(nodes - 1))], parents)
