"""Products of half precision that torch makes slowly.

Where a processor has none of a precision (bfloat16 with AVX2 alone, float16 on all but the newest
with AVX512), torch makes one number after another, so that each row of a pass takes as long as the
one before it. Where it has them, torch reads the weights of few rows at half of the speed that
memory gives. Our own kernel reads weights as they lie, sums in float32, rounds once, and gives a
row the same bits in every pass. Where it cannot be had, slow products of many rows turn the weights
into float32, which takes as long as some seven rows do.

Where torch has instructions, long prompts stay its own, and are multiplied apart from what stands
beside them: so what a row becomes hangs on its own text alone.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_uint64, c_void_p
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftproof import native

T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)
SETS = (b"avx512", b"avx2")  # of the kernel, the fastest first
ROWS = 8  # from which on turning gains
FEW = 64  # rows, up to which our kernel is no slower than torch's instructions of bfloat16
PIECE = 1 << 22  # weights that are turned at once: larger matrices gain from it (docs/log.md)


class _Here(threading.local):
    """Of a thread: whether it is in a pass, of which rows, and where it turns weights."""

    passing = False
    rows = 0  # 0: nobody knows them
    long: Sequence[slice] = ()  # those of them that are prompts of more than FEW tokens

    @property
    def short(self) -> int:
        long: int = sum(each.stop - each.start for each in self.long)
        return self.rows - long

    room: Tensor | None = None  # kept, as new room takes as long as turning


_HERE = _Here()


def slow(model: Any) -> bool:
    """Whether this processor computes half precision, in which the model is, far slower."""
    return model.device.type == "cpu" and _computes_slowly(model.dtype)


def helped(model: Any) -> bool:
    """Whether products of the model's precision are ours, those of few rows at least."""
    return slow(model) or (model.device.type == "cpu" and _reads_slowly(model.dtype))


def longest(dtype: torch.dtype) -> int:
    """Tokens of a prompt that our kernels read; longer ones are torch's."""
    return sys.maxsize if _computes_slowly(dtype) else FEW


def _computes_slowly(dtype: torch.dtype) -> bool:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512" and dtype is torch.float16:
        return not _torch_has_float16()
    return capability == "AVX2" and dtype in HALF


@cache
def _torch_has_float16() -> bool:
    there = torch.backends.mkldnn.is_available()
    return there and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _reads_slowly(dtype: torch.dtype) -> bool:
    """Whether torch multiplies it by AVX512's instructions; not by tiles, as far as we know."""
    capability = torch.backends.cpu.get_cpu_capability()
    return dtype is torch.bfloat16 and capability == "AVX512" and _best_set() == b"avx512"


@cache
def _best_set() -> bytes:
    library = native.found()
    return b"" if library is None else library.dp_kernels(b"")


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

    def during(self, call: Callable[[], T], rows: int = 0, long: Sequence[slice] = ()) -> T:
        """`call`, which passes rows through the model without gradients.

        rows: how many, where prompts are all that may be long; 0: by the rows of each product.
        """
        before, changed = (_HERE.passing, _HERE.rows, _HERE.long), list[dict[str, Any]]()
        try:
            for names, forward in self._layers:
                # Somebody else's stays; one of ours may be left of a pass that was interrupted.
                if isinstance(names.get("forward", forward), _Forward):
                    changed.append(names)
                    names["forward"] = forward
            _HERE.passing, _HERE.rows, _HERE.long = True, rows, long
            return call()
        finally:
            _HERE.passing, _HERE.rows, _HERE.long = before
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
    return partial(product if helped(model) else functional.linear, weight=weight)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (..., inputs), weight (outputs, inputs) and bias (outputs): (..., outputs).

    Has no gradient. As torch's own, rounded once. What does not fit together is torch's to refuse.
    """
    if _plain(rows) and _plain(weight) and rows.dtype is weight.dtype and _fit(rows, weight, bias):
        count, slowly = rows.numel() // rows.shape[-1], _computes_slowly(rows.dtype)
        ours = slowly or _reads_slowly(rows.dtype)
        if ours and (kernel := _kernel(rows.dtype)) is not None and weight.stride(1) == 1:
            if slowly or count <= max(FEW, _HERE.short):
                return _by_kernel(kernel, rows, weight, bias)
            if count == _HERE.rows:
                return _apart(kernel, rows, weight, bias)
        if slowly and count >= ROWS:
            return _turned(rows, weight, bias)
    return functional.linear(rows, weight, bias)


def _plain(given: Tensor) -> bool:
    """Whether its numbers lie there; libraries that quantise have other kinds."""
    kind = type(given)
    known = kind is Tensor or kind is nn.Parameter
    return known and given.is_cpu and given.layout is torch.strided and given.numel() > 0


def _fit(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if not rows.ndim or rows.shape[-1:] != weight.shape[1:]:
        return False
    return bias is None or (
        _plain(bias) and bias.dtype is rows.dtype and bias.shape == weight.shape[:1]
    )


def attention(dtype: torch.dtype) -> Callable[[int, int, int, int], int] | None:
    """`dp_half_rows` on so many of torch's threads; None where products are torch's too."""
    if torch.compiler.is_compiling() or not (_computes_slowly(dtype) or _reads_slowly(dtype)):
        return None
    found = _found(dtype)
    return None if found is None else found.attend


def _kernel(dtype: torch.dtype) -> Callable[[int, int], int] | None:
    """`dp_halves_product`, the same; None without the library, its set or OpenMP."""
    found = _found(dtype)
    return None if found is None else found.multiply


class _Functions(NamedTuple):
    """The library's, by its fastest set and on so many of torch's threads."""

    multiply: Callable[[int, int], int]
    attend: Callable[[int, int, int, int], int]


@cache
def _found(dtype: torch.dtype) -> _Functions | None:
    library = native.found()
    if library is None:
        return None
    sets = (library.dp_halves_set(name, dtype is torch.float16) for name in SETS)
    if (fastest := next(filter(None, sets), None)) is None:
        return None
    try:
        parallel = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p)
    except (OSError, AttributeError, TypeError):  # another system's, or torch with other threads
        return None
    given = fastest, parallel
    return _Functions(
        partial(library.dp_halves_product, *given), partial(library.dp_half_rows, *given)
    )


class _Halves(ctypes.Structure):
    """dp_halves."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "inputs", "outputs")),
        *((name, c_uint64) for name in ("x", "weights", "bias", "out")),
        ("weight_row", c_int64),
    )


def _by_kernel(
    kernel: Callable[[int, int], int], rows: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    outputs, inputs = weight.shape
    rows = rows.contiguous()
    bias = None if bias is None else bias.contiguous()
    made = rows.new_empty(*rows.shape[:-1], outputs)
    of = _Halves(
        *(rows.numel() // inputs, inputs, outputs),
        *(rows.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()),
        *(made.data_ptr(), weight.stride(0)),
    )
    code = kernel(torch.get_num_threads(), ctypes.addressof(of))
    if code == native.NO_MEMORY:
        raise MemoryError("no memory for the rows of this pass: lower max_batch")
    assert code == native.OK, "a product that does not fit was let through"
    return made


def _apart(
    kernel: Callable[[int, int], int], rows: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Of a whole pass long prompts by torch, each by itself, and what stands between them by us."""
    made = rows.new_empty(*rows.shape[:-1], weight.shape[0])
    given, out = rows.reshape(-1, weight.shape[1]), made.view(-1, weight.shape[0])
    at = 0
    for each in (*_HERE.long, slice(_HERE.rows, _HERE.rows)):
        if at < each.start:
            out[at : each.start] = _by_kernel(kernel, given[at : each.start], weight, bias)
        if each.start < each.stop:
            out[each] = functional.linear(given[each], weight, bias)
        at = each.stop
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
