"""What is changed of a model for the length of a call, and given back whatever happens.

Beside `runners.takeover`, which does it for passes that other threads may run too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from draftproof.runners import half


@contextmanager
def shallower(config: Any, layers: int) -> Iterator[None]:
    """A model of that config ends after so many layers (0: all) and its last norm."""
    depth = config.num_hidden_layers
    try:
        config.num_hidden_layers = layers or depth
        yield
    finally:
        config.num_hidden_layers = depth


@contextmanager
def evaluating(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """No dropout for the length of a pass; every module gets its own mode back."""
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def in_single(model: torch.nn.Module) -> Iterator[None]:
    """What is in half precision is in fp32 meanwhile, where that is faster; then as it was."""
    low: list[tuple[torch.Tensor, torch.dtype]] = []
    if half.slow(model):
        every = (*model.parameters(), *model.buffers())
        low = [(one, one.dtype) for one in every if one.dtype in half.HALF]
    try:
        for one, _ in low:
            one.data = one.data.float()
        yield
    finally:
        for one, dtype in low:
            one.data = one.data.to(dtype)
