"""Attention in half precision with the same bits in every pass.

torch's kernels round by how many rows stand beside one another, so a drafted token would have other
logits than the same token written plainly. Here a row goes over what it sees by position, wherever
its slots lie. Long prompts are left to torch, as their products are (`half.py`).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_double, c_int64, c_uint64

import torch
from torch import Tensor

from draftproof import native
from draftproof.runners import half
from draftproof.runners.kv import KVCache
from draftproof.runners.segments import Part, Segment

SIZES = range(16, 513, 16)  # of a head
FIELDS = 9  # of dp_half_text


class _Attention(ctypes.Structure):
    """dp_half_attention."""

    _fields_ = (
        *((name, c_int64) for name in ("heads", "key_heads", "size", "window")),
        *((name, c_uint64) for name in ("q", "out")),
        *((name, c_int64) for name in ("q_head", "q_row")),
        *((name, c_double) for name in ("scale", "cap")),
    )


def attend(
    segments: Sequence[Segment],
    cache: KVCache,
    layer: int,
    query: Tensor,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor | None:
    """(1, T, heads, head size) of a packed query (1, heads, T, head size), but for `left` parts.

    Keys and values of the rows are in the cache. None: it is torch's. Raises `MemoryError`.
    """
    _, heads, rows, size = query.shape
    kernel = half.attention(query.dtype) if query.is_cpu and size in SIZES else None
    if kernel is None or query.stride(3) != 1:
        return None
    table, key_heads = array("q"), 0
    for seg in segments:
        pair = cache.pair(layer, seg.row)
        assert pair is not None, "keys are stored before anything attends to them"
        keys, values = pair
        if not _alike(query, keys, values):
            return None
        key_heads = keys.shape[0]
        for part in seg.apart(half.longest(query.dtype))[0]:
            count = part.end - part.begin
            before = part.slots - count if part.chain else seg.root
            table.extend((seg.begin + part.begin, count, before))
            table.extend((keys.data_ptr(), values.data_ptr(), *keys.stride()[:2]))
            table.extend((0, 0) if part.chain else map(_at, seg.paths()))
    if not table:
        return None
    out = query.new_empty(1, rows, heads, size)
    of = _Attention(
        *(heads, key_heads, size, window or 0),
        *(query.data_ptr(), out.data_ptr(), query.stride(1), query.stride(2)),
        *(size**-0.5 if scaling is None else scaling, softcap or 0.0),
    )
    code = kernel(torch.get_num_threads(), addressof(of), _at(table), len(table) // FIELDS)
    if code == native.NO_MEMORY:
        raise MemoryError("no memory for the scores of this pass: lower max_batch or max_length")
    assert code == native.OK, "rows that do not fit were let through"
    return out


def left(seg: Segment, query: Tensor) -> Sequence[Part]:
    """What is torch's where `attend` answers."""
    return seg.apart(half.longest(query.dtype))[1]


def _alike(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether keys and values lie alike, and are of the query's kind."""
    same = keys.dtype is values.dtype is query.dtype and keys.is_cpu and values.is_cpu
    sizes = keys.shape[-1] == values.shape[-1] == query.shape[3]
    return same and sizes and keys.stride() == values.stride() and keys.stride(-1) == 1


def _at(numbers: array[int]) -> int:
    """Where they lie, while whoever holds them does."""
    return numbers.buffer_info()[0]
