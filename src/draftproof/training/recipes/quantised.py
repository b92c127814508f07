"""A frozen target in int8: half of the memory of bf16.

A layer of our own, because torchao, once installed, takes part in every start of transformers, and
says so; where a pass is long, as in training, nothing faster than this is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KINDS = ("int8",)
LARGEST = 127


class Int8(nn.Module):
    """A linear layer whose weight (out, in) is in int8, a scale for each row; nothing learns."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        whole = linear.weight.detach().float()
        scale = whole.abs().amax(1, keepdim=True).clamp(min=1e-30) / LARGEST
        self.register_buffer("weight", (whole / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.weight * self.scale).to(x.dtype), self.bias)


def quantise(target: Any, kind: str) -> None:
    """Makes every linear layer an `Int8`, in place. Raises `ValueError`.

    But not the LM head: gradients go through it, and heads share it.
    """
    if kind not in KINDS:
        raise ValueError(f"--quantize {kind} is unknown: use {', '.join(KINDS)}")
    head = target.get_output_embeddings()
    linear = {
        path: module
        for path, module in target.named_modules()
        if type(module) is nn.Linear and module is not head
    }
    if not linear:
        raise ValueError(f"{type(target).__name__} has no linear layers: drop --quantize")
    for path, module in linear.items():
        target.set_submodule(path, Int8(module))
