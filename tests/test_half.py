"""Half precision in wide passes: computed in float32 where the processor has no such products."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import draftproof as dp
import encoders
import tiny
from draftproof.runners import half

LONG = [3 + 7 * i % 50 for i in range(2 * half.ROWS)]
PARAMS = dp.SamplingParams(max_tokens=4, ignore_eos=True)


class Products(TorchFunctionMode):
    """What is multiplied: rows and precision of each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, torch.dtype]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear:
            self.seen.append((args[0].numel() // args[0].shape[-1], args[0].dtype))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@pytest.mark.parametrize("piece", [half.PIECE, 640, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", half.HALF)
def test_a_product_is_that_of_float32_rounded_once(
    monkeypatch: pytest.MonkeyPatch, slow: None, dtype: torch.dtype, bias: bool, piece: int
) -> None:
    """Weights are turned all at once, or ten or one of their rows at a time."""
    monkeypatch.setattr(half, "PIECE", piece)
    random = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(64, 48, bias=bias).to(dtype)
    # Whole numbers, whose sums have one value in any order.
    for weight in layer.parameters():
        weight.data = torch.randint(-9, 9, weight.shape, generator=random).to(dtype)
    rows = torch.randint(-9, 9, (2, half.ROWS, 64), generator=random).to(dtype)
    with torch.no_grad():
        got = half.during(tiny.model(dtype=dtype), rows.shape[1], lambda: layer(rows))
        want = layer.float()(rows.float()).to(dtype)
    assert got.dtype is dtype and torch.equal(got, want)


def made(family: str, dtype: torch.dtype) -> Any:
    """A model of its own: those of encoder-decoders are shared by tests."""
    model = copy.deepcopy(encoders.model(family)) if family == "T5" else tiny.model(family)
    return model.to(dtype)  # type: ignore[call-overload]


def products(family: str, dtype: torch.dtype, prompt: list[int]) -> list[tuple[int, torch.dtype]]:
    with dp.LLM(made(family, dtype), runner="torch", speculate=None) as llm, Products() as products:
        llm.generate([prompt], PARAMS)
    return products.seen


@pytest.mark.parametrize("dtype", half.HALF)
@pytest.mark.parametrize("family", ["llama", "T5"])
def test_passes_over_many_rows_are_in_float32(slow: None, family: str, dtype: torch.dtype) -> None:
    """The prompt's, or what the encoder reads; tokens one by one and the head stay as they were."""
    seen = products(family, dtype, LONG)
    wide = {kind for rows, kind in seen if rows >= half.ROWS}
    few = {kind for rows, kind in seen if rows < half.ROWS}
    assert (wide, few) == ({torch.float32}, {dtype})


@pytest.mark.parametrize("family", ["llama", "T5"])
def test_other_processors_and_precisions_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, slow: None, family: str
) -> None:
    assert {kind for _, kind in products(family, torch.float64, LONG)} == {torch.float64}
    assert {kind for _, kind in products(family, torch.bfloat16, LONG[:3])} == {torch.bfloat16}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert {kind for _, kind in products(family, torch.bfloat16, LONG)} == {torch.bfloat16}
