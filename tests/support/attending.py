"""Attention slot by slot: which slots a row sees, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.tree import TokenTree
from oracles import path


def slots_seen(
    cached: int, fresh: int, tree: TokenTree | None, first: int, window: int | None
) -> list[list[int]]:
    """For every packed row of a request, the slots it attends to: its past, one by one."""
    depth = {} if tree is None else {i: len(path(tree, i)) - 1 for i in range(len(tree))}
    position = {slot: slot for slot in range(cached + fresh)}
    position |= {cached + fresh + i: cached + fresh + d for i, d in depth.items()}
    rows = [list(range(cached + i + 1)) for i in range(fresh)]
    if tree is not None:
        root = cached + fresh
        rows += [
            [*range(root), *(root + j for j in path(tree, i))] for i in range(first, len(tree))
        ]
    return [
        [slot for slot in row if window is None or position[row[-1]] - position[slot] < window]
        for row in rows
    ]


def attention(
    query: torch.Tensor,  # (heads, T, d)
    keys: torch.Tensor,  # (key heads, slots, d)
    values: torch.Tensor,
    seen: Sequence[Sequence[int]],
    scaling: float,
    cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """(T, heads, d): every head of every row by itself, over the slots that it sees."""
    made = torch.empty(query.shape[1], query.shape[0], values.shape[2], dtype=query.dtype)
    for head in range(query.shape[0]):
        of = head * keys.shape[0] // query.shape[0]
        for row, slots in enumerate(seen):
            scores = keys[of, slots] @ query[head, row] * scaling
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].to(scores.dtype)])
            made[row, head] = scores.softmax(0)[: len(slots)] @ values[of, slots]
    return made
