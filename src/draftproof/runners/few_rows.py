"""Attention of a few rows of several texts, in one call of our own and not one of torch's each.

In a small model's pass over the next token of each text, calls take longer than what they compute.
The same numbers as `scaled_dot_product_attention` makes, up to the order of additions. Answers None
where it cannot, or where torch's kernels are better at it, and the caller does it with those.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_double, c_int64, c_uint64
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.native import found

WIDE = {torch.float32: 0, torch.float64: 1}
MOST_SLOTS = 2048  # DP_FEW_SLOTS
MOST_SIZE = 512  # of a head
# Products of numbers that a text's rows and keys may need: above, torch's kernels and threads gain
# more than a call costs.
MOST_PRODUCTS = 1 << 17


class Text(NamedTuple):
    """Packed rows of one text and what they look at: views that live until the call is over."""

    begin: int
    rows: int
    slots: int
    keys: Tensor  # (..., key heads, slots or more, head size)
    values: Tensor
    chain: bool = False  # a row sees what stands before it; else all slots
    bias: Tensor | None = None  # (heads or 1, rows or 1, slots), added to scores


class _Few(ctypes.Structure):
    """dp_few."""

    _fields_ = (
        *((name, c_int64) for name in ("wide", "heads", "key_heads", "size")),
        *((name, c_uint64) for name in ("q", "out")),
        *((name, c_int64) for name in ("q_head", "q_row")),
        *((name, c_uint64) for name in ("new_keys", "new_values")),
        *((name, c_int64) for name in ("key_head", "key_row", "value_head", "value_row")),
        *((name, c_double) for name in ("scale", "cap")),
    )


def few(query: Tensor, sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether it is little work, and of a kind that is done here. sizes: (rows, slots) of texts."""
    heads, size = query.shape[1], query.shape[3]
    if query.dtype not in WIDE or query.device.type != "cpu" or found() is None or size > MOST_SIZE:
        return False
    most = MOST_PRODUCTS // (heads * size)
    return all(rows * slots <= most and slots <= MOST_SLOTS for rows, slots in sizes)


def attend(
    query: Tensor,
    texts: Sequence[Text],
    scaling: float | None,
    new: tuple[Tensor, Tensor] | None = None,
    cap: float | None = None,
) -> Tensor | None:
    """(1, T, heads, head size) of a packed query (1, heads, T, head size); `few` said yes.

    new: keys and values (1, key heads, T, head size) that are stored in each text's last slots.
    """
    library, like = found(), texts[0].keys
    _, heads, rows, size = query.shape
    given = [query, *(new or ())]
    for each in given:
        if each.stride(3) != 1 or each.dtype != query.dtype:
            return None
    table = array("q")
    for text in texts:
        keys, values, bias = text.keys, text.values, text.bias
        steps = keys.stride()
        if steps != values.stride() or steps[-1] != 1 or keys.dtype != query.dtype:
            return None
        table.extend((text.begin, text.rows, text.slots, text.chain))
        table.extend((keys.data_ptr(), values.data_ptr(), steps[-3], steps[-2]))
        if bias is None:
            table.extend((0, 0, 0))
            continue
        if bias.stride(2) != 1 or bias.dtype != query.dtype:
            return None
        table.append(bias.data_ptr())
        table.extend(bias.stride(at) if bias.shape[at] > 1 else 0 for at in (0, 1))
    if library is None or like.shape[-1] != size or texts[0].values.shape[-1] != size:
        return None
    out = query.new_empty(1, rows, heads, size)
    of = _Few(
        *(WIDE[query.dtype], heads, like.shape[-3], size),
        *(query.data_ptr(), out.data_ptr(), query.stride(1), query.stride(2)),
    )
    if new is not None:
        (keys, values) = new
        of.new_keys, of.new_values = keys.data_ptr(), values.data_ptr()
        of.key_head, of.key_row = keys.stride(1), keys.stride(2)
        of.value_head, of.value_row = values.stride(1), values.stride(2)
    of.scale = size**-0.5 if scaling is None else scaling
    of.cap = cap or 0.0
    where, _ = table.buffer_info()
    code = library.dp_few_rows(addressof(of), where, len(texts))
    assert code == 0, "rows that do not fit were let through"
    return out
