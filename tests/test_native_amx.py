"""AMX: tiles as the manual has them, the same bits whatever stands beside a row, and the choice.

On any machine with AVX2, because the tile instructions are emulated, and those of AVX512 where
there are none. Where there is AMX, the tests of the other kernels run on it too, and it must give
the emulation's bits.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emulated
import native_models
from draftproof import native
from draftproof.runners.matrix import Linear
from draftproof.runners.team import Team
from emulated import PANEL, REFUSED, Product, bf16_products, libraries, rounded

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

MOST = 32  # rows of a tile
INFO = importlib.import_module("draftproof.cli.info")  # its package may hold the command there
SLOW = pytest.mark.slow
Seed = st.integers(0, 10**6)


@pytest.fixture
def on_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything runs on the emulated library, whose best kernels are AMX."""
    for cached in (native_models.team, native_models.packed):
        cached.cache_clear()
    library = libraries()[0]
    monkeypatch.setattr(native, "library", lambda: library)
    yield
    for cached in (native_models.team, native_models.packed):
        cached.cache_clear()


def numbers(seed: int, count: int, inputs: int, scale: float = 1.0) -> tuple[Any, Any]:
    """Weights (32, inputs) and rows (count, inputs)."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((PANEL, inputs), np.float32)
    return weights * np.float32(scale), rng.standard_normal((count, inputs), np.float32)


def same(a: Any, b: Any) -> bool:
    return a.tobytes() == b.tobytes()


# --- a tile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", emulated.FORMATS)
@pytest.mark.parametrize("inputs", [1, 2, 31, 32, 34, 63, 64, 65, 96, 130, 257])
def test_a_row_alone_and_among_others(inputs: int, precision: str) -> None:
    product = Product(precision, *numbers(inputs, MOST, inputs))
    alone = np.concatenate([product(slice(r, r + 1)) for r in range(MOST)])
    assert np.isfinite(alone).all() and alone.any()
    for count in range(1, MOST + 1):
        first = 7 * count % (MOST - count + 1)
        assert same(product(slice(first, first + count)), alone[first : first + count]), count


@pytest.mark.parametrize("precision", emulated.FORMATS)
@pytest.mark.parametrize("inputs", [2, 31, 64, 97, 256])
def test_the_compiled_instructions_give_these_bits(inputs: int, precision: str) -> None:
    """Those that a processor with AMX will run, one by one: registers, addresses, order."""
    library, product = emulated.trapped(), Product(precision, *numbers(inputs, MOST, inputs))
    for count in range(1, MOST + 1):
        some = slice(MOST - count, MOST)
        assert same(product(some, library=library), product(some)), count


@given(seed=Seed, inputs=st.integers(1, 257), count=st.integers(1, MOST))
@pytest.mark.parametrize("scale", [1.0, 2.0**-66, 2.0**-126])
def test_bf16_is_what_the_manual_says(scale: float, seed: int, inputs: int, count: int) -> None:
    """Products and sums among the denormals too."""
    weights, rows = numbers(seed, count, inputs, scale)
    rows *= np.float32(2.0) ** np.random.default_rng(seed).integers(-60, 4, rows.shape)
    assert same(Product("bfloat16", weights, rows)(), bf16_products(weights, rows))


@given(seed=Seed, inputs=st.integers(1, 257), count=st.integers(1, MOST))
def test_bf16_is_near_the_exact_product(seed: int, inputs: int, count: int) -> None:
    weights, rows = numbers(seed, count, inputs)
    w, x = (rounded(each).astype(np.float64) for each in (weights, rows))
    off = np.abs(Product("bfloat16", weights, rows)() - x @ w.T)
    # A sum has 16 additions in a step, and one for every step.
    most = (18 + inputs / 32) * 2.0**-24 * (np.abs(x) @ np.abs(w).T)
    assert (off <= most).all()


@given(seed=Seed, inputs=st.integers(1, 257), count=st.integers(1, MOST))
@pytest.mark.parametrize("spread", [1.0, 25_000.0])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_integers_have_the_bits_of_vnni(
    precision: str, spread: float, seed: int, inputs: int, count: int
) -> None:
    weights, rows = numbers(seed, count, inputs)
    rows[:, seed % inputs] *= spread
    rows[count // 2, inputs // 2] = np.nan if seed % 3 == 0 else 1.0
    product = Product(precision, weights, rows)
    vnni = [product(slice(r, min(r + 12, count)), "avx512") for r in range(0, count, 12)]
    assert same(product(), np.concatenate(vnni))


@given(seed=Seed, groups=st.integers(1, 9), count=st.integers(1, MOST))
def test_int8_sums_are_exact(seed: int, groups: int, count: int) -> None:
    """Whole numbers whose scales are 1: every set must find their product, the extremes too."""
    rng = np.random.default_rng(seed)
    weights, rows = (
        rng.choice([-127, 127, rng.integers(-127, 128)], (n, 32 * groups)) for n in (PANEL, count)
    )
    weights[:, ::32] = rows[:, ::32] = 127
    product = Product("int8", weights, rows)
    want = (rows @ weights.T).astype(np.float32)
    assert same(product(), want)
    assert same(product(slice(0, 12), "portable"), want[:12])


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    weights, rows = numbers(5, MOST, 100)
    want = Product("bfloat16", weights, rows)()
    for r, wrong in ((3, np.nan), (17, np.inf), (31, -np.inf)):
        rows[r, 41] = wrong
    got = Product("bfloat16", weights, rows)()
    spoiled = [3, 17, 31]
    assert not np.isfinite(got[spoiled]).any()
    assert same(np.delete(got, spoiled, 0), np.delete(want, spoiled, 0))


# --- the thread's tiles ---------------------------------------------------------------------------


@pytest.mark.parametrize("precision", emulated.FORMATS)
def test_shapes_are_set_when_they_change(precision: str) -> None:
    library, product = libraries()[0], Product(precision, *numbers(1, MOST, 70))
    product(slice(0, 13))
    before = library.dp_tiles_set()
    for _ in range(3):
        product(slice(0, 13))
    assert library.dp_tiles_set() == before
    product(slice(0, 14))
    product(slice(0, 14))
    assert library.dp_tiles_set() == before + 1


@pytest.mark.parametrize("precision", emulated.FORMATS)
def test_other_code_of_the_thread_uses_tiles_too(precision: str) -> None:
    """As torch's does: it sets its own shapes, or releases ours."""
    product = Product(precision, *numbers(2, MOST, 70))
    want = product()
    for how in (0, 1):
        libraries()[0].dp_disturb(how)
        assert same(product(), want)


RULES = {
    0: "used before it has a shape",
    1: "a shape that no tile can have",
    2: "a tile that palette 1 does not have",
    3: "the first factor has another shape",
    4: "the first factor has another shape",
    5: "the second factor has another shape",
    6: "a shape that no tile can have",
    7: "used before it has a shape",
}


def test_the_emulation_notices_what_a_processor_refuses() -> None:
    path = libraries()[0]._name
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).dp_break_rules(int(sys.argv[2]))"
    for which, words in RULES.items():
        command = [sys.executable, "-c", program, path, str(which)]
        done = subprocess.run(command, capture_output=True)
        assert done.returncode and f"tiles: {words}\n".encode() in done.stderr, which


# --- matrices and models --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", emulated.FORMATS)
@pytest.mark.parametrize(("inputs", "outputs"), [(46, 70), (257, 33), (64, 32)])
def test_any_number_of_rows(on_tiles: None, inputs: int, outputs: int, precision: str) -> None:
    rows_give_their_own_bits(inputs, outputs, precision, threads=2)


def rows_give_their_own_bits(inputs: int, outputs: int, precision: str, threads: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    rows = torch.randn(70, inputs, generator=generator)
    made = Linear(weight, precision, native_models.team(threads))
    alone = torch.cat([made(row[None]) for row in rows])
    for count in range(1, 71):
        assert torch.equal(made(rows[:count]), alone[:count]), count


@SLOW
@settings(max_examples=300)
@given(inputs=st.integers(1, 257), outputs=st.integers(1, 100), threads=st.integers(1, 3))
@pytest.mark.parametrize("precision", emulated.FORMATS)
def test_any_matrix(precision: str, inputs: int, outputs: int, threads: int) -> None:
    library = libraries()[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: library)
        native_models.team.cache_clear()
        rows_give_their_own_bits(inputs, outputs, precision, threads)
    native_models.team.cache_clear()


# Every model and every format; all pairs of them are slow.
MODELS = [
    pytest.param(name, precision, marks=[] if precision == "mixed" or name == "qwen3" else SLOW)
    for name in native_models.CONFIGS
    for precision in native_models.FORMATS
]


@pytest.mark.parametrize(("name", "precision"), MODELS)
def test_bits_do_not_depend_on_the_pass(on_tiles: None, name: str, precision: str) -> None:
    assert native.kernels() == "amx"
    native_models.bits_do_not_depend_on_the_pass(name, precision, "amx")


@pytest.mark.parametrize("precision", native_models.FORMATS)
def test_logits_are_near_those_of_avx512(on_tiles: None, precision: str) -> None:
    """Attention's products differ by rounding, those of bf16 matrices too."""
    ids = native_models.tokens(1, 40)
    plain = {
        kernels: native_models.one_by_one(native_models.runner("llama", precision, kernels), ids)
        for kernels in ("amx", "avx512")
    }
    error = native_models.spread_error(plain["amx"], plain["avx512"])
    assert 0 < error < {"bfloat16": 0.02}.get(precision, 0.05)


@pytest.mark.parametrize("precision", emulated.FORMATS)
def test_a_processor_with_tiles_gives_these_bits(precision: str) -> None:
    if not native.library().dp_kernels(b"amx"):
        pytest.skip("no AMX on this machine")
    generator = torch.Generator().manual_seed(1)
    weight, rows = (torch.randn(n, 250, generator=generator) for n in (70, 40))
    found = []
    for library in (native.library(), libraries()[0]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", lambda library=library: library)
            patch.setattr(native, "kernels", lambda: "amx")
            found.append(Linear(weight, precision, Team(1))(rows))
    assert torch.equal(*found)


# --- the choice -----------------------------------------------------------------------------------


def test_tiles_are_taken_where_they_may_be(on_tiles: None) -> None:
    assert native.kernels() == "amx" and native.missed() == ""
    assert INFO.facts()["runners"]["native"]["missed"] is None
    assert native_models.runner(precision="int8").name == "native (amx)"


def test_a_system_that_refuses_tiles_gets_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "AMX is there, but this system does not let programs use it"
    library = libraries()[1]
    monkeypatch.setattr(native, "library", lambda: library)
    assert native.kernels() == "avx512" and native.missed() == why
    assert native.library().dp_kernels(b"amx") == b""
    facts = INFO.facts()
    assert facts["runners"]["native"]["missed"] == why
    assert ("", why) in INFO._rows(facts)
    monkeypatch.delenv(REFUSED, raising=False)
    assert native.kernels() == "avx512"  # a process asks once


def test_a_processor_without_tiles_misses_nothing() -> None:
    told = Path("/proc/cpuinfo")
    if not told.exists() or "amx_tile" in told.read_text():
        pytest.skip("there may be AMX")
    assert native.kernels() != "amx" and native.missed() == ""
