"""What is changed of a model for the length of a call, and given back whatever happens.

Beside `runners.takeover`, which does it for passes that other threads may run too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


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


def slow_in_half(model: Any) -> bool:
    """Whether this processor computes half precision, in which the model is, far slower than fp32.

    One with AVX2 alone has no such products: a model of 135M read rows in it at a seventh.
    """
    half = model.dtype.itemsize == 2 and model.device.type == "cpu"
    return half and torch.backends.cpu.get_cpu_capability() == "AVX2"


@contextmanager
def in_single(model: torch.nn.Module) -> Iterator[None]:
    """What is in half precision is in fp32 meanwhile, where that is faster; then as it was."""
    half: list[tuple[torch.Tensor, torch.dtype]] = []
    if slow_in_half(model):
        every = (*model.parameters(), *model.buffers())
        half = [(one, one.dtype) for one in every if one.dtype in (torch.bfloat16, torch.float16)]
    try:
        for one, _ in half:
            one.data = one.data.float()
        yield
    finally:
        for one, dtype in half:
            one.data = one.data.to(dtype)
