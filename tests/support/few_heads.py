"""Heads that guess every second token."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.heads.module import Heads
from fitted_heads import D, K, V, random

IDS = torch.arange(1, V, 2)


def few(own: bool = False) -> Heads:
    outputs = random(K if own else 1, len(IDS), D, seed=2)
    weights = random(K, 1, D, D)
    return Heads(weights, random(K, 1, D, seed=1), outputs, vocab_size=V, tokens=IDS)


def not_its_head(states: Tensor) -> Tensor:
    raise AssertionError("these heads have projections of their own")


def of_part(heads: Heads, ids: Tensor) -> Heads:
    """Heads with projections of their own, for these tokens alone."""
    assert heads.outputs is not None
    return Heads(
        heads.weights, None, heads.outputs[:, ids], vocab_size=heads.vocab_size, tokens=ids
    )
