"""Products of half precision, on processors that have none.

With AVX2 alone torch makes one number of them after another, so that each row of a pass takes as
long as the one before it. Our own kernel reads weights as they lie, sums in float32, rounds once,
and gives a row the same bits whatever stands beside it. Where it cannot be had, products of many
rows turn the weights into float32, which takes as long as some seven rows do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_uint64, c_void_p
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftproof import native

T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)
ROWS = 8  # from which on turning gains
PIECE = 1 << 22  # weights that are turned at once: larger matrices gain from it (docs/log.md)


def slow(model: Any) -> bool:
    """Whether this processor computes half precision, in which the model is, far slower."""
    half = model.dtype in HALF and model.device.type == "cpu"
    return half and torch.backends.cpu.get_cpu_capability() == "AVX2"


class Layers:
    """The matrices of a model, which is changed for the length of a call: be alone with it."""

    def __init__(self, model: nn.Module) -> None:
        self._model, room = model, Room()
        self._layers = [
            (vars(each), partial(_product_of, each, room))
            for each in model.modules()
            if type(each) is nn.Linear and "forward" not in vars(each)  # nobody else's
        ]

    def during(self, call: Callable[[], T]) -> T:
        """`call`, which passes rows through the model, as fast as this processor can."""
        if not slow(self._model):
            return call()
        try:
            for names, forward in self._layers:
                names["forward"] = forward
            return call()
        finally:
            for names, _ in self._layers:
                names.pop("forward", None)


class Room:
    """Where weights are turned: new room for them takes as long as turning them."""

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.float32)

    def turned(self, weight: Tensor) -> Tensor:
        """The weights in float32, until others are turned."""
        if self._room.numel() < weight.numel():
            self._room = self._room.new_empty(weight.numel())
        return self._room[: weight.numel()].view(weight.shape).copy_(weight)


def by(model: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """What multiplies rows (N, in) by a matrix (out, in) of the model's own precision: (N, out)."""
    if not slow(model):
        return partial(functional.linear, weight=weight)
    return partial(product, weight=weight, bias=None, room=Room())


def _product_of(layer: nn.Linear, room: Room, rows: Tensor) -> Tensor:
    return product(rows, layer.weight, layer.bias, room)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None, room: Room) -> Tensor:
    """rows (..., inputs), weight (outputs, inputs) and bias (outputs): (..., outputs).

    As torch's own, rounded once, on a processor that computes half precision slowly.
    """
    if rows.dtype in HALF and weight.dtype is rows.dtype and rows.numel() and weight.numel():
        if _parallel() is not None and weight.stride(1) == 1:
            return _by_kernel(rows, weight, bias)
        if rows.numel() >= ROWS * rows.shape[-1]:
            return _turned(rows, weight, bias, room)
    return functional.linear(rows, weight, bias)


@cache
def _parallel() -> int | None:
    """Where the function is that runs others on torch's threads; None without it or the kernels.

    Threads of our own would wait for torch's, which stay awake between its operations.
    """
    try:
        found = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p).value
    except (OSError, AttributeError, TypeError):  # another system's, or torch with other threads
        return None
    return None if native.found() is None else found


class _Halves(ctypes.Structure):
    """dp_halves."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "inputs", "outputs", "fp16")),
        *((name, c_uint64) for name in ("x", "weights", "bias", "out")),
        *((name, c_int64) for name in ("x_row", "weight_row")),
    )


def _by_kernel(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    outputs, inputs = weight.shape
    given = rows.reshape(-1, inputs)
    given = given if given.stride(1) == 1 else given.contiguous()
    bias = None if bias is None else bias.contiguous()
    made = rows.new_empty(*rows.shape[:-1], outputs)
    of = _Halves(
        *(given.shape[0], inputs, outputs, rows.dtype is torch.float16),
        *(given.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()),
        *(made.data_ptr(), given.stride(0), weight.stride(0)),
    )
    code = native.library().dp_halves_product(
        _parallel(), torch.get_num_threads(), ctypes.addressof(of)
    )
    if code == native.NO_MEMORY:
        raise MemoryError("no memory for the rows of this pass: lower max_batch")
    assert code == native.OK, "a product that does not fit was let through"
    return made


def _turned(rows: Tensor, weight: Tensor, bias: Tensor | None, room: Room) -> Tensor:
    """By torch, with weights in float32."""
    single = rows.float()
    pieces = weight.split(max(1, PIECE // weight.shape[1]))
    made = rows.new_empty(*rows.shape[:-1], weight.shape[0])
    parts = zip(
        made.split(pieces[0].shape[0], -1),
        pieces,
        [None] * len(pieces) if bias is None else bias.split(pieces[0].shape[0]),
        strict=True,
    )
    for place, piece, own in parts:
        own = None if own is None else own.float()
        place.copy_(functional.linear(single, room.turned(piece), own))
    return made
