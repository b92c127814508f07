"""Products of half precision where torch has none: exact, whatever stands beside a row."""

from __future__ import annotations

import ctypes

import pytest
import torch

from draftproof import native
from draftproof.runners import half
from halves import the_product_is_that_of_float32_rounded_once, whole

BOTH = pytest.mark.parametrize("dtype", half.HALF)


@BOTH
@pytest.mark.parametrize("inputs", [1, 7, 8, 37, 64])
@pytest.mark.parametrize("outputs", [1, 2, 48, 53])
def test_by_the_kernel(each_kernel: bytes, dtype: torch.dtype, inputs: int, outputs: int) -> None:
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
def test_it_rounds_as_torch_does(each_kernel: bytes, dtype: torch.dtype) -> None:
    """Every number of 16 bits times some: what a product has in float32 is rounded once more."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)[:, None]
    some = torch.tensor([1.0, 1 / 3, -0.7, 1.5, 200.0, 2.0**-9, torch.inf], dtype=dtype)[:, None]
    got, want = half.product(every, some), (every.float() * some.float().T).to(dtype)
    normal = torch.ones_like(want, dtype=torch.bool)
    if each_kernel == b"avx512" and dtype is torch.bfloat16:
        # For these instructions, as torch uses them too, numbers that are not normal are zero.
        least = 2 * torch.finfo(dtype).tiny
        tiny = want.float().abs() < least
        assert (got[tiny].float().abs() <= least).all()
        normal = ~tiny & ~(every.float().abs() < least)
    assert torch.equal(got.isnan()[normal], want.isnan()[normal])
    compared = normal & ~want.isnan()
    assert want.isinf().any() and torch.equal(got[compared], want[compared])


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_among_others(
    each_kernel: bytes, dtype: torch.dtype, threads: int
) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(300, 131, generator=generator).to(dtype)
    rows = torch.randn(33, 131, generator=generator).to(dtype)
    alone = torch.cat([half.product(row[None], weight) for row in rows])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in range(1, len(rows) + 1):
            first = 7 * count % (len(rows) - count + 1)
            some = slice(first, first + count)
            assert torch.equal(half.product(rows[some], weight), alone[some]), count
    finally:
        torch.set_num_threads(before)


def test_rows_and_weights_lie_as_they_like(each_kernel: bytes) -> None:
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
        got = half.product(some, of)
        assert torch.equal(got, (some.float() @ of.float().T).to(torch.bfloat16))


def test_what_does_not_fit_is_refused_by_the_library(each_kernel: bytes) -> None:
    library = native.library()
    rows, weight = torch.ones(1, 4).bfloat16(), torch.ones(3, 4).bfloat16()
    out = torch.zeros(3, dtype=torch.bfloat16)
    sizes = {"rows": 1, "inputs": 4, "outputs": 3, "weight_row": 4}
    fastest = library.dp_halves_set(half.SETS[0], False)
    places = {"x": rows.data_ptr(), "weights": weight.data_ptr(), "out": out.data_ptr()}

    def code(threads: int = 1, **change: int) -> int:
        of = half._Halves(**(sizes | places | change))
        found: int = library.dp_halves_product(fastest, None, threads, ctypes.addressof(of))
        return found

    wrong = [{name: 0} for name in ("rows", "inputs", "outputs", *places)]
    wrong += [{name: -1} for name in sizes] + [{"threads": 0}]
    assert {code(**change) for change in wrong} == {native.BAD_ARGUMENT} and not out.any()
    assert library.dp_halves_product(fastest, None, 1, None) == native.BAD_ARGUMENT
    assert library.dp_halves_product(None, None, 1, None) == native.BAD_ARGUMENT
    assert library.dp_halves_set(b"portable", False) is None
    assert code() == native.OK and out.tolist() == [4.0] * 3


class Quantised(torch.Tensor):
    """As torchao's: it says bfloat16, and holds something else."""


def test_other_kinds_of_tensors_are_left_to_torch(
    kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "_by_kernel", lambda *given: pytest.fail("it was read"))
    generator = torch.Generator().manual_seed(6)
    rows, weight = (whole(generator, 9, 8, dtype=torch.bfloat16) for _ in range(2))
    quantised = torch.nn.Parameter(weight.as_subclass(Quantised), requires_grad=False)
    want = (rows.float() @ weight.float().T).bfloat16()
    for some, of in ((rows, quantised), (rows.as_subclass(Quantised), weight)):
        assert torch.equal(half.product(some, of), want)
    assert half.product(rows.float(), weight.float()).dtype is torch.float32
    wrong = [(weight[:, :4], None), (weight.half(), None), (weight, torch.zeros(9))]
    wrong += [(weight, torch.zeros(size).bfloat16()) for size in (8, 10)]
    for of, bias in wrong:
        with pytest.raises(RuntimeError, match=r"shapes|dtype|size"):
            half.product(rows, of, bias)
    broadcast = torch.full((1,), 2.0).bfloat16()
    assert torch.equal(
        half.product(rows, weight, broadcast), (rows.float() @ weight.float().T + 2).bfloat16()
    )
    assert torch.equal(half.product(rows, weight[0]), (rows.float() @ weight[0].float()).bfloat16())


def test_numbers_that_are_not_normal_count_in_every_thread_or_in_none(each_kernel: bytes) -> None:
    """Or an output would hang on which of them has it."""
    rows = torch.full((1, 16), 2.0**-66).bfloat16()
    weight = torch.full((4096, 16), 2.0**-66).bfloat16()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.set_flush_denormal(True)  # of this thread
        got = half.product(rows, weight)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert (got == (0 if each_kernel == b"avx512" else 16 * 2.0**-132)).all()


@pytest.mark.parametrize("lacks", ["kernels", "their set", "function"])
def test_without_what_it_needs_there_is_no_kernel(
    slow: None, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    class Library:
        def dp_halves_set(self, name: bytes, fp16: bool) -> int | None:
            return None if lacks == "their set" else 1

    half._found.cache_clear()
    monkeypatch.setattr(native, "found", lambda: None if lacks == "kernels" else Library())
    if lacks == "function":
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    try:
        assert half._kernel(torch.bfloat16) is None
        the_product_is_that_of_float32_rounded_once(torch.bfloat16, half.ROWS, 8, 3)
    finally:
        half._found.cache_clear()
