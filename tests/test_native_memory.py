"""The native runner stopped anywhere, for want of memory or by an interrupt: the next step works.

Its library refuses what a test says (`refusals`), and counts what torch is asked for with its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig

import tiny
from draftproof import native
from draftproof.runners import native as native_runner
from draftproof.runners import native_rows, packing
from draftproof.runners.base import Work
from draftproof.runners.matrix import Linear
from draftproof.runners.native import NativeRunner
from draftproof.runners.team import Team
from draftproof.runners.weights import LoadedWeights
from draftproof.tree import TokenTree
from refusals import ALL, library, refusals

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


V = 61
CONFIG = {**tiny.COMMON, "vocab_size": V, "hidden_size": 32, "intermediate_size": 48}
PROMPTS = {key: [3 + (7 * key + 5 * i) % (V - 3) for i in range(9 + 8 * key)] for key in range(3)}


@cache
def model() -> PreTrainedModel:
    config = LlamaConfig(**{**CONFIG, "head_dim": 16, "num_hidden_layers": 2})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[packing.Packed]:
    """In the library that refuses; torch's allocations are counted with its own."""
    real = torch.empty

    def empty(*shape: Any, **options: Any) -> Tensor:
        if not library().dp_allowed():
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return real(*shape, **options)

    monkeypatch.setattr(native, "library", library)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr("draftproof.runners.rows.FIRST_SLOTS", 16)
    yield packing.Packed(LoadedWeights(model()), "bfloat16", kernels="portable")
    library().dp_refuse(0, 0)


def runner(packed: packing.Packed) -> NativeRunner:
    return NativeRunner(model(), packed=packed, team=Team(1), max_batch=3)


def step(made: NativeRunner, keys: Sequence[int]) -> dict[int, Tensor]:
    """A pass over what is not cached of the prompts, and a tree: the logits of every node."""
    work = []
    for key in keys:
        *new, last = PROMPTS[key]
        tree = TokenTree([last, 5, 9, 7], [-1, 0, 0, 1])
        work.append(Work(key, new[made.cached(key) :], tree))
    outputs = made.forward(work, (1, -1))
    return {key: output.logits.clone() for key, output in zip(keys, outputs, strict=True)}


def same(found: dict[int, Tensor], want: dict[int, Tensor]) -> bool:
    return all(torch.equal(found[key], want[key]) for key in found)


def goes_on(made: NativeRunner, want: dict[int, Tensor]) -> None:
    """Neighbours go on, then everybody begins anew, and nothing is held that nobody owns."""
    assert same(step(made, [0]), want)
    assert same(step(made, [0, 1, 2]), want)
    for key in PROMPTS:
        made.free(key)
    assert same(step(made, [2]), want) and same(step(made, [2, 1, 0]), want)
    for key in PROMPTS:
        made.free(key)
    rows = made._cache
    assert not rows.rows and not rows.lengths
    rows.check(())


def test_a_step_that_finds_no_memory(packed: packing.Packed) -> None:
    want = step(runner(packed), [0, 1, 2])

    def prepare() -> NativeRunner:
        made = runner(packed)
        assert same(step(made, [0]), want)
        return made

    def attempt(made: NativeRunner) -> bool:
        try:
            assert same(step(made, [0, 1, 2]), want)
        except MemoryError as error:
            assert str(error).endswith(("lower max_batch", "lower max_batch or max_length"))
            return False
        return True

    fitted = []
    for made, fits in refusals(attempt, prepare):
        fitted.append(fits)
        goes_on(made, want)
    assert fitted.count(False) > 20 and fitted.count(True) >= 2


def test_a_row_that_finds_no_memory_is_not_taken(packed: packing.Packed) -> None:
    made = runner(packed)
    want = step(made, [0, 1, 2])
    for key in PROMPTS:
        made.free(key)
    made.close()
    for _ in range(5):  # more often than there are rows
        library().dp_refuse(0, ALL)
        with pytest.raises(MemoryError, match="lower max_batch"):
            step(made, [1])
        library().dp_refuse(0, 0)
        assert 1 not in made._cache.rows
    goes_on(made, want)


def test_a_row_grows_to_what_is_needed_where_twice_as_much_is_refused(
    packed: packing.Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = native_rows.NativeRows(packed, 1, 10**6)
    monkeypatch.setattr(native_rows, "available_bytes", lambda device: rows.bytes(700))
    rows.reserve(0, 400)
    rows.reserve(0, 600)
    assert rows._slots == {0: 600}
    with pytest.raises(MemoryError, match=r"with 900 tokens take [\d,]+ bytes"):
        rows.reserve(0, 900)
    assert rows._slots == {0: 600} and rows.rows == {0: 0}


def test_idle_room_makes_way_for_a_row_that_finds_none(
    packed: packing.Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = native_rows.NativeRows(packed, 3, 10**6)
    free = rows.bytes(1000)
    monkeypatch.setattr(
        native_rows, "available_bytes", lambda device: free - rows.bytes(sum(rows._slots.values()))
    )
    monkeypatch.setattr("draftproof.runners.rows.SPARE", 9.0)
    rows.reserve(0, 700)
    rows.release(0)
    assert rows._slots == {0: 700}
    rows.reserve(1, 900)
    assert rows._slots == {1: 900}
    with pytest.raises(MemoryError):
        rows.reserve(2, 200)


def test_a_copy_that_finds_no_memory(packed: packing.Packed) -> None:
    want = step(runner(packed), [0, 1, 2])

    def prepare() -> NativeRunner:
        made = runner(packed)
        step(made, [2])
        return made

    def attempt(made: NativeRunner) -> bool:
        try:
            made._cache.copy(made._cache.rows[2], 1, 20)
        except MemoryError:
            assert 1 not in made._cache.rows
            return False
        made.free(1)
        return True

    copied = []
    for made, fits in refusals(attempt, prepare):
        copied.append(fits)
        goes_on(made, want)
    assert copied.count(False) >= 4 and copied.count(True) >= 2


class Interrupted(BaseException):
    pass


def interrupted(made: NativeRunner, at: int) -> bool:
    """A step, interrupted before line number `at` of those of the runner; False: it ended."""
    seen = 0
    files = {native_runner.__file__, native_rows.__file__}

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == at:
                raise Interrupted
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        step(made, [0, 1])
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_step_that_is_interrupted_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.runners.rows.FIRST_SLOTS", 16)
    packed = packing.Packed(LoadedWeights(model()), "bfloat16")
    want, at = step(runner(packed), [0, 1, 2]), 0
    while True:
        made, at = runner(packed), at + 1
        assert same(step(made, [0]), want)
        if not interrupted(made, at):
            break
        goes_on(made, want)
    assert at > 100


def test_weights_that_find_no_memory(packed: packing.Packed) -> None:
    def attempt(_: None) -> packing.Packed | None:
        try:
            return packing.Packed(LoadedWeights(model()), "bfloat16", kernels="portable")
        except MemoryError as error:
            assert str(error).startswith("no memory")
            return None

    made = [found for _, found in refusals(attempt)]
    assert made.count(None) > 20 and len(made) - made.count(None) >= 2
    want = step(runner(packed), [1])
    assert all(same(step(runner(each), [1]), want) for each in made if each is not None)


def test_a_matrix_that_finds_no_memory(packed: packing.Packed) -> None:
    weight, team, rows = torch.randn(40, 16), Team(1), torch.randn(3, 16)
    want = Linear(weight, "int8", team)(rows)

    def attempt(_: None) -> Tensor | None:
        try:
            return Linear(weight, "int8", team)(rows)
        except MemoryError as error:
            assert str(error).startswith("no memory")
            return None

    for _, found in refusals(attempt):
        assert found is None or torch.equal(found, want)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is resident is told there")
def test_the_first_token_of_a_long_row_touches_little_of_it() -> None:
    """Else a call that may write much would keep everybody waiting while it all is zeroed."""
    made = NativeRunner(model(), packed=packing.Packed(LoadedWeights(model()), "bfloat16"))
    slots = 1 << 17
    with open("/proc/self/statm") as file:  # what is resident, in pages
        made.forward([Work(0, [3, 4, 5], TokenTree.chain([6]))])
        made._cache.reserve(1, slots)
        file.seek(0)
        before = int(file.read().split()[1])
        made.forward([Work(1, [3, 4, 5], TokenTree.chain([6]))])
        file.seek(0)
        touched = 4096 * (int(file.read().split()[1]) - before)
    assert made._cache.slots_of(1) >= slots
    assert touched < made._cache.slot_bytes * slots / 8
    made.close()
