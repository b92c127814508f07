"""Single matrices on the native kernels. Knows no models."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from draftproof import native
from draftproof.runners.team import Team
from draftproof.runners.weights import Blocks


class Linear:
    """A matrix (out, in) in the layout of the kernels; called with rows (N, in), gives (N, out).

    It is packed as the head of a model without layers. Raises `ValueError` for weights that are
    not finite, `MemoryError` where there is no room.
    """

    def __init__(self, weight: Tensor, precision: str, team: Team) -> None:
        self.library, self.team = native.library(), team
        self.outputs, inputs = weight.shape
        shape = native.Shape(
            layers=0,
            hidden=inputs,
            heads=1,
            kv_heads=1,
            head_dim=2,
            intermediate=1,
            vocabulary=self.outputs,
        )
        formats = (ctypes.c_int32 * 2)(native.PRECISIONS[precision], -1)
        kernels = native.kernels().encode()
        self.handle = self.library.dp_model_new(ctypes.byref(shape), formats, kernels)
        if not self.handle:
            raise MemoryError(f"no memory for a matrix of {self.outputs} x {inputs}")
        native.owned(self, self.library.dp_model_free, self.handle)
        code = pack(self.handle, native.HEAD, 0, weight)
        if code == native.NO_MEMORY:
            raise MemoryError(f"no memory to pack a matrix of {self.outputs} x {inputs}")
        if code != native.OK:
            raise ValueError(
                f"a matrix of {self.outputs} x {inputs} holds NaN or infinity, or more than "
                f"{precision} can"
            )

    def __call__(self, rows: Tensor) -> Tensor:
        return product(self, self.team, rows, self.outputs)


def pack(handle: Any, which: int, layer: int, weight: Tensor | Blocks) -> int:
    """Copies a matrix (out, in) into the layout of the kernels; returns the library's code."""
    if isinstance(weight, Blocks):
        data = weight.data.contiguous()
        args = handle, which, layer, data.data_ptr(), native.SOURCE_BLOCKS, *weight.shape
        code: int = native.library().dp_model_matrix(*args)
        return reorder(handle, which, layer, weight.order) if code == native.OK else code
    data = weight.detach()
    if data.dtype not in (torch.float32, torch.bfloat16):
        data = data.float()
    data = data.contiguous()
    source = native.SOURCE_BF16 if data.dtype == torch.bfloat16 else native.SOURCE_FP32
    args = handle, which, layer, data.data_ptr(), source, *data.shape
    code = native.library().dp_model_matrix(*args)
    return code


def reorder(handle: Any, which: int, layer: int, order: Tensor | None) -> int:
    """Tells in which order the inputs of a packed matrix stand; returns the library's code."""
    if order is None:
        return native.OK
    order = order.contiguous()
    code: int = native.library().dp_model_order(handle, which, layer, order.data_ptr(), len(order))
    return code


def floats(*shape: int) -> Tensor:
    """An empty tensor in fp32. Raises `MemoryError`, of which torch makes a `RuntimeError`."""
    try:
        return torch.empty(shape)
    except RuntimeError as error:
        raise MemoryError(f"no memory for {shape} numbers: lower max_batch") from error


def product(packed: Any, team: Team, rows: Tensor, outputs: int) -> Tensor:
    """`rows` (N, in) times the head that is packed there, (N, outputs) in fp32."""
    given = rows.to(torch.float32).contiguous()
    made = floats(len(given), outputs)
    args = packed.handle, team.handle, given.data_ptr(), len(given)
    check(packed.library.dp_head(*args, made.data_ptr()))
    return made


def check(code: int) -> None:
    """Raise what a pass or a product answered, if it is not OK."""
    if code == native.NO_MEMORY:
        raise MemoryError("no memory for the activations of this pass: lower max_batch")
    if code == native.FORKED:
        raise RuntimeError(
            "this process was forked while the model was in a pass: load the model in the child"
        )
    assert code == native.OK, "the kernels refused a pass that is not sound"
