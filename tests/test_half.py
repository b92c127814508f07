"""Half precision on processors that have no products of it: as exact, and as fast as it can be."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import draftproof as dp
import encoders
import tiny
from draftproof import native
from draftproof.runners import half

PARAMS = dp.SamplingParams(max_tokens=4, ignore_eos=True)
LONG = [3 + 7 * i % 50 for i in range(2 * half.ROWS)]
BOTH = pytest.mark.parametrize("dtype", half.HALF)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@pytest.fixture
def kernel(slow: None) -> None:
    if half._parallel() is None or not native.library().dp_kernels(b"avx2"):
        pytest.skip("there is no AVX2, or torch has other threads")


@pytest.fixture
def turned(slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_parallel", lambda: None)


def multiplied(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return half.product(rows, weight, bias, half.Room())


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
        got = multiplied(given, weight, own)
        want = given.float() @ weight.float().T + (0 if own is None else own.float())
        assert got.dtype is dtype and torch.equal(got, want.to(dtype))


@BOTH
@pytest.mark.parametrize("inputs", [1, 7, 8, 37, 64])
@pytest.mark.parametrize("outputs", [1, 2, 48, 53])
def test_by_the_kernel(kernel: None, dtype: torch.dtype, inputs: int, outputs: int) -> None:
    for rows in (1, 2, 3, 9):
        the_product_is_that_of_float32_rounded_once(dtype, rows, inputs, outputs)


@BOTH
@pytest.mark.parametrize("piece", [half.PIECE, 640, 1])
def test_with_weights_that_are_turned(
    turned: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    """All at once, or ten or one of their rows at a time."""
    monkeypatch.setattr(half, "PIECE", piece)
    the_product_is_that_of_float32_rounded_once(dtype, half.ROWS, 64, 48)


@BOTH
def test_it_rounds_as_torch_does(kernel: None, dtype: torch.dtype) -> None:
    """Every number of 16 bits times some: products of two are exact in float32."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)[:, None]
    some = torch.tensor([1.0, 1 / 3, -0.7, 1.5, 200.0, 2.0**-9, torch.inf], dtype=dtype)[:, None]
    got, want = multiplied(every, some), (every.float() * some.float().T).to(dtype)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_among_others(
    kernel: None, dtype: torch.dtype, threads: int
) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(300, 131, generator=generator).to(dtype)
    rows = torch.randn(33, 131, generator=generator).to(dtype)
    alone = torch.cat([multiplied(row[None], weight) for row in rows])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in range(1, len(rows) + 1):
            first = 7 * count % (len(rows) - count + 1)
            some = slice(first, first + count)
            assert torch.equal(multiplied(rows[some], weight), alone[some]), count
    finally:
        torch.set_num_threads(before)


def test_rows_and_weights_lie_as_they_like(kernel: None) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = whole(generator, 40, 12, dtype=torch.bfloat16)
    weight = whole(generator, 24, 80, dtype=torch.bfloat16)
    cases = [
        (rows[::3, 2:9], weight[5:, 10:17]),
        (rows.T[:, :7], weight[::2, :7]),
        (rows[:1, :4].expand(5, 4), weight[:1, 3:7].expand(6, 4)),
        (rows[:0], weight[:, :12]),
        (rows, weight[:0, :12]),
        (rows, weight.T[:12].T.contiguous()),
        (rows[:12].T, weight.T[:48:4].T),  # whose rows do not lie together
    ]
    for some, of in cases:
        got = multiplied(some, of)
        assert torch.equal(got, (some.float() @ of.float().T).to(torch.bfloat16))


def test_what_does_not_fit_is_refused_by_the_library(kernel: None) -> None:
    library = native.library()
    rows, weight = torch.ones(1, 4).bfloat16(), torch.ones(3, 4).bfloat16()
    out = torch.zeros(3, dtype=torch.bfloat16)
    sizes = {"rows": 1, "inputs": 4, "outputs": 3, "x_row": 4, "weight_row": 4}
    places = {"x": rows.data_ptr(), "weights": weight.data_ptr(), "out": out.data_ptr()}

    def code(threads: int = 1, **change: int) -> int:
        of = half._Halves(**(sizes | places | change))
        found: int = library.dp_halves_product(None, threads, ctypes.addressof(of))
        return found

    wrong = [{name: 0} for name in ("rows", "inputs", "outputs", *places)]
    wrong += [{name: -1} for name in sizes] + [{"threads": 0}]
    assert {code(**change) for change in wrong} == {native.BAD_ARGUMENT} and not out.any()
    assert library.dp_halves_product(None, 1, None) == native.BAD_ARGUMENT
    assert code() == native.OK and out.tolist() == [4.0] * 3


# --- models ---------------------------------------------------------------------------------------


def made(family: str, dtype: torch.dtype) -> Any:
    """A model of its own: those of encoder-decoders are shared by tests."""
    model = copy.deepcopy(encoders.model(family)) if family == "T5" else tiny.model(family)
    return model.to(dtype)  # type: ignore[call-overload]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How products were made: by what, of how many rows."""
    seen: list[tuple[str, int]] = []

    def told(name: str) -> Callable[..., Tensor]:
        own = getattr(half, name)

        def product(rows: Tensor, *more: Any) -> Tensor:
            seen.append((name, rows.numel() // rows.shape[-1]))
            found: Tensor = own(rows, *more)
            return found

        return product

    for name in ("_by_kernel", "_turned"):
        monkeypatch.setattr(half, name, told(name))
    return seen


def write(family: str, dtype: torch.dtype, prompt: list[int] = LONG) -> None:
    with dp.LLM(made(family, dtype), runner="torch", speculate=None) as llm:
        llm.generate([prompt], PARAMS)


@BOTH
@pytest.mark.parametrize("family", ["llama", "T5"])
def test_models_go_by_the_kernel(
    kernel: None, seen: list[tuple[str, int]], family: str, dtype: torch.dtype
) -> None:
    """The prompt, or what the encoder reads, tokens one by one, and the head."""
    write(family, dtype)
    assert {name for name, _ in seen} == {"_by_kernel"}
    assert {1, len(LONG)} <= {rows for _, rows in seen}


@BOTH
@pytest.mark.parametrize("family", ["llama", "T5"])
def test_without_the_kernel_many_rows_are_turned(
    turned: None, seen: list[tuple[str, int]], family: str, dtype: torch.dtype
) -> None:
    write(family, dtype)
    assert seen and {name for name, _ in seen} == {"_turned"}
    assert min(rows for _, rows in seen) >= half.ROWS


@pytest.mark.parametrize("family", ["llama", "T5"])
def test_other_processors_and_precisions_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, slow: None, seen: list[tuple[str, int]], family: str
) -> None:
    write(family, torch.float64)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    write(family, torch.bfloat16)
    assert not seen


def test_the_model_is_given_back(kernel: None, seen: list[tuple[str, int]]) -> None:
    """After an error too; and a layer that somebody else changed is theirs."""
    model = made("llama", torch.bfloat16)
    theirs = model.model.layers[0].mlp.up_proj
    calls: list[int] = []

    def changed(rows: Tensor) -> Tensor:
        calls.append(rows.shape[-2])
        return functional.linear(rows, theirs.weight)

    theirs.forward = changed
    layers = half.Layers(model)

    def fails() -> None:
        assert "forward" in vars(model.model.layers[1].mlp.up_proj)
        model(input_ids=torch.tensor([[1, 2, 3]]))
        raise RuntimeError("in a pass")

    with torch.inference_mode(), pytest.raises(RuntimeError, match="in a pass"):
        layers.during(fails)
    left = [each for each in model.modules() if "forward" in vars(each)]
    assert left == [theirs] and calls == [3] and seen


def test_matrices_of_heads_go_by_the_kernel(kernel: None, seen: list[tuple[str, int]]) -> None:
    with dp.LLM(made("llama", torch.bfloat16), runner="torch", speculate=None) as llm:
        weight = whole(torch.Generator().manual_seed(4), 40, 16, dtype=torch.bfloat16)
        rows = whole(torch.Generator().manual_seed(5), 3, 16, dtype=torch.bfloat16)
        runner: Any = llm.runner
        del seen[:]
        got = runner.linear(weight)(rows)
        assert seen == [("_by_kernel", 3)]
        assert torch.equal(got, (rows.float() @ weight.float().T).bfloat16())
        del seen[:]
        runner.head(torch.ones(2, runner.config.hidden_size).bfloat16())
        assert seen == [("_by_kernel", 2)]
