"""Models that share nothing, weights, or everything."""

from __future__ import annotations

import copy
from functools import cache

import torch
from transformers import PreTrainedModel

import tiny
from draftproof import native
from draftproof.tree import TokenTree

TREE = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])


@cache
def target() -> PreTrainedModel:
    return tiny.model(dtype=torch.float64)


def fresh() -> PreTrainedModel:
    return copy.deepcopy(target())


def native_is_there() -> bool:
    try:
        native.library()
    except native.Missing:
        return False
    return True
