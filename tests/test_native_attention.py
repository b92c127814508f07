"""The products of attention by themselves: right, and a pair's bits do not depend on its company.

On the library whose AMX and, where there is none, AVX512 are emulated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulated
import native_models
from draftproof import native
from draftproof.runners.base import Work
from draftproof.tree import TokenTree
from emulated import Guarded, bf16_products, libraries, rounded

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

SETS = native_models.SETS
DIMS = [16, 48, 64, 80, 128]
Seed, Dim = st.integers(0, 10**6), st.sampled_from(DIMS)


def bf16(x: Any) -> Any:
    """The bits of numbers that are bfloat16."""
    return np.ascontiguousarray((x.view(np.uint32) >> 16).astype(np.uint16))


def guarded(x: Any) -> Guarded:
    made = Guarded(x.nbytes)
    made.bytes[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return made


def scores(kernels: str, keys: Any, q: Any, library: Any = None) -> Any:
    """(pairs, slots): keys (slots, dim), of 16 slots a block, against q (pairs, dim)."""
    slots, dim = keys.shape
    blocks = bf16(keys).reshape(slots // 16, 16, dim // 2, 2).transpose(0, 2, 1, 3)
    given, asked = guarded(blocks), guarded(bf16(q))
    out = np.full((len(q), slots + 3), np.nan, np.float32)
    made = (library or libraries()[0]).dp_scores(
        kernels.encode(), given.address, slots // 16, asked.address, len(q), dim,
        out.ctypes.data, slots + 3,
    )  # fmt: skip
    assert len(q) <= made and np.isnan(out[:, slots:]).all()
    return out[:, :slots].copy()


def weighed(kernels: str, values: Any, weights: Any, library: Any = None) -> Any:
    """(pairs, dim): values (n, dim) times weights (pairs, n), on sums of 1."""
    n, dim = values.shape
    pairs = guarded(bf16(values).reshape(n // 2, 2, dim).transpose(0, 2, 1))
    out, given = np.ones((len(weights), dim), np.float32), guarded(weights)
    made = (library or libraries()[0]).dp_weigh(
        kernels.encode(), pairs.address, n, given.address, n, len(weights), dim, out.ctypes.data
    )
    assert len(weights) <= made
    return out


def most(kernels: str) -> int:
    """Pairs of a call."""
    none = np.zeros(0, np.float32).ctypes.data
    count: int = libraries()[0].dp_weigh(kernels.encode(), none, 0, none, 0, 99, 16, none)
    return count


def numbers(seed: int, *shape: int) -> Any:
    return rounded(np.random.default_rng(seed).standard_normal(shape, np.float32))


def softmax(seed: int, *shape: int) -> Any:
    """Weights as attention has them: up to 1, most of them small."""
    x = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(4)
    return np.exp(x - x.max(-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("dim", DIMS)
def test_a_pair_alone_and_among_others(dim: int, kernels: str) -> None:
    count = most(kernels)
    for slots in (32, 64, 112, 160):
        keys, q = numbers(1, slots, dim), numbers(2, count, dim)
        alone = np.concatenate([scores(kernels, keys, q[p : p + 1]) for p in range(count)])
        values, weights = numbers(3, slots // 32 * 32, dim), softmax(4, count, slots // 32 * 32)
        each = np.concatenate([weighed(kernels, values, weights[p : p + 1]) for p in range(count)])
        for some in range(1, count + 1):
            first = 7 * some % (count - some + 1)
            pairs = slice(first, first + some)
            assert scores(kernels, keys, q[pairs]).tobytes() == alone[pairs].tobytes()
            got = weighed(kernels, values, weights[pairs])
            assert got.tobytes() == each[pairs].tobytes()


@pytest.mark.parametrize("kernels", SETS)
@settings(max_examples=25)
@given(seed=Seed, dim=Dim, blocks=st.integers(1, 9))
def test_they_are_near_the_exact_products(kernels: str, seed: int, dim: int, blocks: int) -> None:
    keys, q = numbers(seed, 16 * blocks, dim), numbers(seed + 1, 3, dim)
    a, b = q.astype(np.float64), keys.astype(np.float64).T
    bound = (dim + 2) * 2.0**-24 * (abs(a) @ abs(b))
    assert (abs(scores(kernels, keys, q) - a @ b) <= bound).all()
    values, weights = numbers(seed, 32 * blocks, dim), softmax(seed, 3, 32 * blocks)
    a, b = weights.astype(np.float64), values.astype(np.float64)
    off = {"avx512": 2.0**-9, "amx": 2.0**-16}.get(kernels, 0.0)  # a weight rounded; in two parts
    bound = (off + (32 * blocks + 2) * 2.0**-24) * (1 + a @ abs(b))
    assert (abs(weighed(kernels, values, weights) - 1 - a @ b) <= bound).all()


@given(seed=Seed, dim=Dim)
def test_scores_by_tiles_are_what_the_manual_says(seed: int, dim: int) -> None:
    keys, q = numbers(seed, 32, dim), numbers(seed + 1, 5, dim)
    assert scores("amx", keys, q).tobytes() == bf16_products(keys, q).tobytes()


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("cut", [32, 64, 128])
def test_any_cut_at_a_step_gives_the_same_sums(cut: int, kernels: str) -> None:
    values, weights = numbers(1, 256, 64), softmax(2, 3, 256)
    values[:, 0] = 1  # not all sums are as good as random
    whole = weighed(kernels, values, weights)
    first = np.ascontiguousarray(weights[:, :cut]), np.ascontiguousarray(weights[:, cut:])
    library = libraries()[0]
    out = np.ones((3, 64), np.float32)
    for part, some in ((values[:cut], first[0]), (values[cut:], first[1])):
        pairs = guarded(bf16(part).reshape(len(part) // 2, 2, 64).transpose(0, 2, 1))
        library.dp_weigh(
            kernels.encode(), pairs.address, len(part), some.ctypes.data, len(part), 3, 64,
            out.ctypes.data,
        )  # fmt: skip
    assert out.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dim", [16, 48, 64, 80])
def test_the_compiled_instructions_give_these_bits(dim: int) -> None:
    """Those that a processor with AMX will run, one by one: registers, addresses, order."""
    library = emulated.trapped()
    for count in (1, 3, 16):
        keys, q = numbers(1, 112, dim), numbers(2, count, dim)
        assert scores("amx", keys, q, library).tobytes() == scores("amx", keys, q).tobytes()
        values, weights = numbers(3, 160, dim), softmax(4, count, 160)
        got = weighed("amx", values, weights, library)
        assert got.tobytes() == weighed("amx", values, weights).tobytes()


@pytest.mark.parametrize("kernels", SETS)
def test_what_a_row_does_not_see_may_be_nan(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots before the window share their steps with those inside; a NaN there reaches no row."""
    library = libraries()[0]
    native_models.team.cache_clear()
    native_models.packed.cache_clear()
    monkeypatch.setattr(native, "library", lambda: library)
    ids = native_models.tokens(3, 60)
    made = native_models.runner("narrow window", kernels=kernels)
    want = {}
    for length in (45, 46):  # one of them begins within a pair of slots
        for spoiled in (False, True):
            made.forward([Work(0, ids[:length], None)])
            row = made._cache.reserve(0, length)
            for slot in range(length - 8 if spoiled else 0):
                library.dp_spoil(row, slot)
            (output,) = made.forward([Work(0, [], TokenTree.chain(ids[length : length + 9]))])
            rows = output.logits.clone()
            assert rows.isfinite().all() and rows.equal(want.setdefault(length, rows))
            made.free(0)
    native_models.team.cache_clear()
    native_models.packed.cache_clear()
