"""Formats of packed matrices: what their bytes mean, against the same arithmetic in numbers."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftproof import native
from draftproof.runners.matrix import Linear
from draftproof.runners.team import Team
from grouped import GROUP, in_groups
from native_models import SETS, sets

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

KINDS = 15
Seed = st.integers(0, 10**6)


def linear(weight: Tensor, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> Linear:
    """On one thread, on these kernels."""
    with monkeypatch.context() as patch:
        patch.setattr(native, "kernels", lambda: kernels)
        return Linear(weight, precision, Team(1))


def product(weight: Tensor, rows: Tensor) -> Tensor:
    """What int8 in groups should give, (N, out) in float64."""
    w, of_w = in_groups(weight, in_halves=True)
    x, of_x = in_groups(rows, in_halves=False)
    sums = torch.einsum("ogi,ngi->nog", w, x)  # whole numbers
    return torch.einsum("nog,og,ng->no", sums, of_w, of_x)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("spread", [1.0, 25_000.0])
@given(seed=Seed, inputs=st.integers(1, 257), outputs=st.integers(1, 70), count=st.integers(1, 30))
def test_int8_is_the_product_of_what_was_rounded(
    kernels: str, spread: float, seed: int, inputs: int, outputs: int, count: int
) -> None:
    """With inputs that are far larger than the others too, as those of published models are."""
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    rows = torch.randn(count, inputs, generator=generator)
    rows[:, seed % inputs] *= spread
    with pytest.MonkeyPatch.context() as patch:
        got = linear(weight, "int8", kernels, patch)(rows)
    want = product(weight, rows)
    scales = in_groups(rows, in_halves=False)[1].sum(1, keepdim=True)
    terms = scales * 127 * weight.abs().max() * GROUP
    assert ((got - want).abs() <= 1e-6 * terms).all()


@given(seed=Seed, inputs=st.integers(1, 257), loud=st.integers(0, 256))
def test_a_loud_input_spoils_only_its_group(seed: int, inputs: int, loud: int) -> None:
    """With one scale for the row all that is left of the others would be zero."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(20, inputs, generator=generator)
    row = torch.randn(1, inputs, generator=generator)
    quiet = row.clone()
    group = loud % inputs // GROUP
    quiet[:, group * GROUP : (group + 1) * GROUP] = 0
    row[:, loud % inputs] *= 25_000
    weight[:, loud % inputs] = 0
    made = Linear(weight, "int8", Team(1))
    others = quiet.abs().sum() + 1e-3
    kept = made(row) - made(row - quiet)  # of the other groups
    assert (kept - quiet @ weight.T).abs().max() < 0.1 * others


@pytest.mark.parametrize("precision", native.PRECISIONS)
def test_a_row_that_is_not_finite_gives_no_number(precision: str) -> None:
    made = Linear(torch.randn(40, 50), precision, Team(1))
    for wrong in (float("nan"), float("inf"), -float("inf")):
        rows = torch.randn(3, 50)
        rows[1, 37] = wrong
        out = made(rows)
        assert not out[1].isfinite().any() and out[0].isfinite().all() and out[2].isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3])
def test_weights_of_any_size(scale: float) -> None:
    weight, rows = torch.randn(40, 50), torch.randn(3, 50)
    made = Linear(weight * scale, "int8", Team(1))
    want = rows @ weight.T if scale > 1e-9 else torch.zeros(3, 40)  # below what fp16 holds: nothing
    assert (made(rows) / scale - want).abs().max() <= 0.05 * want.abs().max()
    assert not made(torch.zeros(1, 50)).any()
    assert not Linear(torch.zeros(4, 50), "int8", Team(1))(rows).any()


def bytes_of(head: int, others: int) -> int:
    shape = native.Shape(2, 64, 4, 2, 16, 96, 320)
    kinds = {native.HEAD: head, native.EMBEDDINGS: -1}
    formats = native.formats(2, lambda which, _: kinds.get(which, others))
    return int(native.library().dp_model_bytes(ctypes.byref(shape), formats))


def test_int8_takes_half_and_a_scale_for_each_group() -> None:
    of_bf16 = bytes_of(native.BF16, native.BF16)
    assert bytes_of(native.INT8, native.INT8) * 2 * GROUP == of_bf16 * (GROUP + 2)
    assert bytes_of(native.INT4, native.INT4) * 2 * GROUP == of_bf16 * (GROUP / 2 + 4)
    assert of_bf16 - bytes_of(native.INT8, native.BF16) == 64 * 320 * (2 - 34 / 32)


def test_no_format_of_that_number() -> None:
    assert all(bytes_of(kind, 0) < 0 and bytes_of(0, kind) < 0 for kind in (-1, KINDS))
    assert native.library().dp_tile_rate(Team(1).handle, KINDS, 1) == 0
