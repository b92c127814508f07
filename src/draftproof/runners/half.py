"""Products of half precision in float32, on processors that compute those far faster.

One with AVX2 alone has no products of half precision, and torch makes one number of them after
another. Turning the weights into float32 and back the sums takes as long as some ten rows do, so a
pass over more is faster with that, a prompt's six times. The numbers are those of the same
products, rounded once, up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)
ROWS = 12  # from which on it gains: 1.0 at eight, 1.7 at sixteen (135M, bfloat16, docs/log.md)


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

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear and not kwargs:
            rows, *weights = args
            if rows.dtype in HALF and rows.numel() >= ROWS * rows.shape[-1]:
                single: list[Any] = [None if each is None else each.float() for each in weights]
                return function(rows.float(), *single).to(rows.dtype)
        return function(*args, **(kwargs or {}))
