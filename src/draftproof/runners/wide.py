"""A model once more in float64 all through, where rounding alone may explain a difference.

Models whose logits hang on the last bits of what goes before (deep, or with large weights) give
others in lower precision for every order of the same sums. In float64 such a difference is a
trillionth, and one that has another cause stays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from draftproof.runners.kv import SMALL, available_bytes

T = TypeVar("T")
LOWER = (torch.float32, torch.bfloat16, torch.float16)


class _Wide(TorchFunctionMode):
    """Whoever asks for float32 (a softmax, a norm, a router) gets float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        given = {name: _wide(each) for name, each in (kwargs or {}).items()}
        return function(*map(_wide, args), **given)


def _wide(given: Any) -> Any:
    return torch.float64 if isinstance(given, torch.dtype) and given in LOWER else given


def during(call: Callable[[], T]) -> T:
    """`call`, in this thread, with everything that is computed in float64."""
    with _Wide():
        return call()


def of(model: nn.Module) -> Any:
    """A copy in float64, which shares nothing with the model.

    Raises `MemoryError` where there is no room for it, and whatever copying raises.
    """
    parts = [*model.parameters(), *model.buffers()]
    size = 8 * sum(part.numel() for part in parts)
    free = available_bytes(parts[0].device) if size > SMALL else None
    if free is not None and size > free:
        raise MemoryError(f"a copy in float64 takes {size} bytes and {free} are free")
    memo: dict[int, Any] = {
        id(part): nn.Parameter(part.detach().double(), requires_grad=False)
        for part in model.parameters()
        if part.is_floating_point()
    }
    made: Any = copy.deepcopy(model, memo).double()
    for part in made.modules():  # routers keep the precision that they compute in
        if getattr(part, "dtype", None) in LOWER and "dtype" in vars(part):
            part.dtype = torch.float64
    return made
