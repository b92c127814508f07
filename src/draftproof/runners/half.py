"""Products of half precision, on processors that have none.

With AVX2 alone torch makes one number of them after another, so that each row of a pass takes as
long as the one before it. Our own kernel reads weights as they lie, sums in float32, rounds once,
and gives a row the same bits in every pass. Where it cannot be had, products of many rows turn the
weights into float32, which takes as long as some seven rows do.
"""

from __future__ import annotations

import ctypes
import threading
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


class _Here(threading.local):
    """Of a thread: whether it is in a pass, and where it turns weights."""

    passing = False
    room: Tensor | None = None  # kept, as new room takes as long as turning


_HERE = _Here()


def slow(model: Any) -> bool:
    """Whether this processor computes half precision, in which the model is, far slower."""
    half = model.dtype in HALF and model.device.type == "cpu"
    return half and torch.backends.cpu.get_cpu_capability() == "AVX2"


class Layers:
    """The plain linear layers of a model, which are changed for the length of a pass.

    Be alone with the model. Another thread that passes through it meanwhile has torch's products,
    and so has whoever gets a copy that was made then.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [
            (vars(each), _Forward(_product_of, each))
            for each in model.modules()
            if type(each) is nn.Linear
        ]

    def during(self, call: Callable[[], T]) -> T:
        """`call`, which passes rows through the model without gradients."""
        before, changed = _HERE.passing, list[dict[str, Any]]()
        try:
            for names, forward in self._layers:
                # Somebody else's stays; one of ours may be left of a pass that was interrupted.
                if isinstance(names.get("forward", forward), _Forward):
                    changed.append(names)
                    names["forward"] = forward
            _HERE.passing = True
            return call()
        finally:
            _HERE.passing = before
            for names in changed:
                names.pop("forward", None)


class _Forward(partial[Tensor]):
    """What stands in for a layer's own `forward`."""


def _product_of(layer: nn.Linear, input: Tensor) -> Tensor:  # noqa: A002  as the layer has it
    compiled = torch.compiler.is_compiling()  # which would stop at each of them
    make = product if not compiled and _HERE.passing else functional.linear
    return make(input, layer.weight, layer.bias)


def by(model: Any, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """What multiplies rows (N, in) by a matrix (out, in) of the model's own precision: (N, out)."""
    return partial(product if slow(model) else functional.linear, weight=weight)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (..., inputs), weight (outputs, inputs) and bias (outputs): (..., outputs).

    Has no gradient. As torch's own, rounded once, on a processor that computes half precision
    slowly. What does not fit together is torch's to refuse.
    """
    given = (rows, weight) if bias is None else (rows, weight, bias)
    alike = all(_plain(each) and each.dtype is rows.dtype for each in given)
    fits = rows.ndim and rows.shape[-1:] == weight.shape[1:]
    if alike and fits and (bias is None or bias.shape == weight.shape[:1]):
        if (kernel := _kernel()) is not None and weight.stride(1) == 1:
            return _by_kernel(kernel, rows, weight, bias)
        if rows.numel() >= ROWS * rows.shape[-1]:
            return _turned(rows, weight, bias)
    return functional.linear(rows, weight, bias)


def _plain(given: Tensor) -> bool:
    """Whether its numbers of half precision lie there; libraries that quantise have other kinds."""
    kind = type(given) in (Tensor, nn.Parameter) and given.layout is torch.strided
    return kind and given.dtype in HALF and given.device.type == "cpu" and given.numel() > 0


@cache
def _kernel() -> Callable[[int, int], int] | None:
    """The library's product, on so many of torch's threads; None without it, its set or OpenMP."""
    library = native.found()
    if library is None or not library.dp_kernels(b"avx2"):
        return None
    try:
        parallel = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p)
    except (OSError, AttributeError, TypeError):  # another system's, or torch with other threads
        return None
    return partial(library.dp_halves_product, parallel)


class _Halves(ctypes.Structure):
    """dp_halves."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "inputs", "outputs", "fp16")),
        *((name, c_uint64) for name in ("x", "weights", "bias", "out")),
        *((name, c_int64) for name in ("x_row", "weight_row")),
    )


def _by_kernel(
    kernel: Callable[[int, int], int], rows: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
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
    code = kernel(torch.get_num_threads(), ctypes.addressof(of))
    if code == native.NO_MEMORY:
        raise MemoryError("no memory for the rows of this pass: lower max_batch")
    assert code == native.OK, "a product that does not fit was let through"
    return made


def _turned(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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
    if _HERE.room is None or _HERE.room.numel() < pieces[0].numel():
        with torch.inference_mode(False):  # it stays for whoever comes in another mode
            _HERE.room = torch.empty(pieces[0].numel(), dtype=torch.float32, device="cpu")
    for place, piece, own in parts:
        turned = _HERE.room[: piece.numel()].view(piece.shape).copy_(piece)
        place.copy_(functional.linear(single, turned, None if own is None else own.float()))
    return made
