"""Products of half precision in float32, on processors that compute those far faster.

One with AVX2 alone has no products of half precision, and torch makes one number of them after
another. Turning the weights into float32 takes as long as some seven rows do, so a pass over more
is faster with that, a prompt's six times. The numbers are those of the same products, rounded once,
up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)
ROWS = 8  # from which on it gains
PIECE = 1 << 22  # weights that are turned at once: larger matrices gain from it (docs/log.md)


def slow(model: Any) -> bool:
    """Whether this processor computes half precision, in which the model is, far slower."""
    half = model.dtype in HALF and model.device.type == "cpu"
    return half and torch.backends.cpu.get_cpu_capability() == "AVX2"


def during(model: Any, rows: int, call: Callable[[], T]) -> T:
    """`call`, a pass of the model over so many rows, as fast as this processor can."""
    if rows < ROWS or not slow(model):
        return call()
    with _Single():
        return call()


class _Single(TorchFunctionMode):
    """Of this thread's products those over many rows; a head may have few in a wide pass."""

    def __init__(self) -> None:
        super().__init__()
        # Room for all weights of a pass in turn: new room takes as long as turning them.
        self._turned = torch.empty(0, dtype=torch.float32)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear and not kwargs:
            rows, weight, *bias = args
            many = rows.numel() >= ROWS * rows.shape[-1]
            if many and rows.dtype in HALF and weight.dtype is rows.dtype and weight.ndim == 2:
                return self._product(rows, weight, *bias)
        return function(*args, **(kwargs or {}))

    def _product(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """rows (..., inputs), weight (outputs, inputs) and bias (outputs): (..., outputs)."""
        single = rows.float()
        pieces = weight.split(max(1, PIECE // weight.shape[1]))
        if len(pieces) == 1:
            return self._piece(single, weight, bias).to(rows.dtype)
        made = rows.new_empty(*rows.shape[:-1], len(weight))
        parts = zip(
            made.split(len(pieces[0]), -1),
            pieces,
            [None] * len(pieces) if bias is None else bias.split(len(pieces[0])),
            strict=True,
        )
        for place, piece, own in parts:
            place.copy_(self._piece(single, piece, own))
        return made

    def _piece(self, single: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._turned.numel() < weight.numel():
            self._turned = self._turned.new_empty(weight.numel())
        turned = self._turned[: weight.numel()].view(weight.shape).copy_(weight)
        return functional.linear(single, turned, None if bias is None else bias.float())
