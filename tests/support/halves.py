"""Products of half precision for tests: as on a slow processor, by the kernel or without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from draftproof.runners import half


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@pytest.fixture
def kernel(slow: None) -> None:
    _needs_kernel()


@pytest.fixture(params=half.SETS, ids=bytes.decode)
def each_kernel(
    slow: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[bytes]:
    """The instructions by which it multiplies."""
    monkeypatch.setattr(half, "SETS", (request.param,))
    half._found.cache_clear()
    try:
        _needs_kernel()
        yield request.param
    finally:
        half._found.cache_clear()


def _needs_kernel() -> None:
    if not all(map(half._kernel, half.HALF)):
        pytest.skip("the processor lacks these instructions, or torch has other threads")


@pytest.fixture
def turned(slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_kernel", lambda dtype: None)


def whole(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers, whose sums have one value in any order."""
    return torch.randint(-9, 9, shape, generator=generator).to(dtype)


def the_product_is_that_of_float32_rounded_once(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = whole(generator, outputs, inputs, dtype=dtype)
    bias = whole(generator, outputs, dtype=dtype)
    given = whole(generator, 2, rows, inputs, dtype=dtype)
    for own in (bias, None):
        got = half.product(given, weight, own)
        want = given.float() @ weight.float().T + (0 if own is None else own.float())
        assert got.dtype is dtype and torch.equal(got, want.to(dtype))
