"""Attention of a few rows in one call of our own: what torch's makes of each text alone."""

from __future__ import annotations

import ctypes
import math
from random import Random

import pytest
import torch
from torch import Tensor

from draftproof import native
from draftproof.runners import few_rows
from draftproof.runners.few_rows import Text

needs_kernels = pytest.mark.skipif(native.found() is None, reason="no kernels were built")
CLOSE = {torch.float32: 3e-6, torch.float64: 1e-13}


def alone(text: Text, query: Tensor, scale: float, cap: float | None) -> Tensor:
    """The slow twin: (rows, heads, head size), in plain steps."""
    heads, groups = query.shape[1], query.shape[1] // text.keys.shape[-3]
    keys, values = (
        each.reshape(each.shape[-3:])[:, : text.slots].repeat_interleave(groups, 0)
        for each in (text.keys, text.values)
    )
    asked = query[0, :, text.begin : text.begin + text.rows]
    scores = asked @ keys.transpose(1, 2) * scale  # (heads, rows, slots)
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if text.bias is not None:
        scores = scores + text.bias
    if text.chain:
        last = torch.arange(text.slots - text.rows, text.slots)[:, None]
        scores = scores.masked_fill(torch.arange(text.slots) > last, -math.inf)
    assert scores.shape[0] == heads
    return (scores.softmax(-1) @ values).transpose(0, 1)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_each_text_has_what_it_has_alone(seed: int, dtype: torch.dtype) -> None:
    """Sizes that fill vectors or do not, groups, biases, caps, masks, keys laid either way."""
    draw, rng = Random(seed), torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=dtype)

    size, key_heads = draw.choice([4, 16, 24, 32, 64, 80, 200]), draw.choice([1, 2, 3])
    heads, cap = key_heads * draw.choice([1, 2, 4]), draw.choice([None, 3.0])
    sizes = [(draw.randint(1, 5), draw.choice([5, 17, 64, 130])) for _ in range(draw.randint(1, 6))]
    total = sum(rows for rows, _ in sizes)
    query = some(1, total, heads, size).transpose(1, 2)
    new = (some(1, total, key_heads, size).transpose(1, 2), some(1, key_heads, total, size))
    own, texts, begin = draw.random() < 0.5, [], 0
    for rows, slots in sizes:
        keys, values = some(key_heads, slots + 7, size), some(key_heads, slots + 7, size)
        if not own and draw.random() < 0.5:  # as a projection leaves them
            keys, values = (each.transpose(0, 1).clone().transpose(0, 1) for each in (keys, values))
        bias = draw.choice([None, some(heads, rows, slots), some(1, rows, slots)])
        if bias is not None:
            bias[..., 1] = -math.inf
        texts.append(Text(begin, rows, slots, keys, values, draw.random() < 0.5, bias))
        begin += rows
    found = few_rows.attend(query, texts, None, new if own else None, cap)
    assert found is not None and found.shape == (1, total, heads, size)
    for text in texts:
        span = slice(text.begin, text.begin + text.rows)
        if own:
            at = slice(text.slots - text.rows, text.slots)
            assert torch.equal(text.keys[:, at], new[0][0, :, span])
            assert torch.equal(text.values[:, at], new[1][0, :, span])
        want = alone(text, query, size**-0.5, cap)
        torch.testing.assert_close(found[0, span], want, rtol=0, atol=CLOSE[dtype] * 10)
        rest = text._replace(begin=0)
        by_itself = few_rows.attend(query[:, :, span], [rest], None, None, cap)
        assert by_itself is not None
        assert torch.equal(by_itself[0], found[0, span]), "neighbours changed bits"


@needs_kernels
@pytest.mark.parametrize("wrong", [math.nan, math.inf], ids=str)
def test_a_row_that_is_not_finite_is_seen_and_its_neighbours_are_whole(wrong: float) -> None:
    query = torch.randn(1, 2, 3, 8)
    texts = [Text(n, 1, 6, torch.randn(2, 6, 8), torch.randn(2, 6, 8)) for n in range(2)]
    texts.append(texts[0]._replace(begin=2))
    texts[1].keys[0, 3] = wrong
    found = few_rows.attend(query, texts, 1.0)
    assert found is not None
    assert found[0, 1, 0].isnan().all() and found[0, [0, 2]].isfinite().all()
    assert found[0, 1, 1].isfinite().all()


@needs_kernels
def test_a_slot_that_is_masked_does_nothing_whatever_it_holds() -> None:
    query, bias = torch.randn(1, 2, 1, 8), torch.zeros(1, 1, 6)
    bias[..., 4] = -math.inf
    keys, values = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    before = few_rows.attend(query, [Text(0, 1, 6, keys, values, bias=bias)], None)
    values[:, 4] = math.nan
    after = few_rows.attend(query, [Text(0, 1, 6, keys, values, bias=bias)], None)
    assert before is not None and after is not None and torch.equal(before, after)


def test_what_it_leaves_to_torch() -> None:
    query = torch.randn(1, 8, 1, 64)
    many = few_rows.MOST_PRODUCTS // (8 * 64) + 1
    assert not few_rows.few(query, [(1, 5), (1, many)])
    assert not few_rows.few(query[:, :1, :, :1], [(1, few_rows.MOST_SLOTS + 1)])
    assert not few_rows.few(query.bfloat16(), [(1, 5)])
    assert not few_rows.few(query.to("meta"), [(1, 5)])
    if native.found() is not None:
        assert few_rows.few(query, [(1, 5), (1, many - 1)])
        apart = torch.randn(8, 64, 5).transpose(1, 2)  # a head's numbers do not stand side by side
        assert few_rows.attend(query, [Text(0, 1, 5, apart, apart)], None) is None


@needs_kernels
@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"slots": 0},
        {"slots": 2049},
        {"rows": 7, "chain": 1},
        {"size": 513},
        {"heads": 5},
    ],
    ids=str,
)
def test_the_library_refuses_what_does_not_fit(wrong: dict[str, int]) -> None:
    """And touches nothing: every pointer is null."""
    of = few_rows._Few(heads=4, key_heads=2, size=8)
    text = {"begin": 0, "rows": 1, "slots": 6, "chain": 0}
    for name, value in wrong.items():
        if name in text:
            text[name] = value
        else:
            setattr(of, name, value)
    table = (ctypes.c_int64 * 11)(*text.values())
    assert native.library().dp_few_rows(ctypes.byref(of), table, 1) == native.BAD_ARGUMENT
    assert native.library().dp_few_rows(None, table, 1) == native.BAD_ARGUMENT
    assert native.library().dp_few_rows(ctypes.byref(of), None, 1) == native.BAD_ARGUMENT
