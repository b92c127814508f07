"""Rows of keys and values: their room, who has them, how they grow."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.runners import choice, kv
from draftproof.runners.base import Work
from draftproof.runners.kv import KVCache
from draftproof.runners.rows import FIRST_SLOTS
from draftproof.tree import TokenTree
from writing_rows import model, slots, some, write


def test_a_refused_tensor_ends_one_request_and_nothing_else(
    refuse_tensor: Callable[[int], list[int]],
) -> None:
    prompts = [some(0, 30), some(1, 600), some(2, 5)]  # the second one grows
    short = tiny.model(dtype=torch.float64, num_hidden_layers=2, max_position_embeddings=4096)
    short.config.layer_types = ["full_attention"] * 2
    runner = choice.on_torch(short, max_batch=3)
    alone = [write(choice.on_torch(short), 0, prompt, 2) for prompt in prompts]
    asked, number = refuse_tensor(0), 0
    for key, prompt in enumerate(prompts):
        write(runner, key, prompt, 2)
    total = asked[0]
    assert total == 4 * 2 * 2  # keys and values of two layers, twice for one row
    for number in range(1, total + 1):
        runner.close()
        refuse_tensor(number)
        failed = []
        for key, prompt in enumerate(prompts):
            try:
                assert write(runner, key, prompt, 2) == alone[key]
            except MemoryError as error:
                assert "tokens take" in str(error) and "max_length" in str(error)
                failed.append(key)
                runner.free(key)
        assert len(failed) == 1
        assert write(runner, 7, prompts[failed[0]], 2) == alone[failed[0]]  # memory is back
        held = {*range(3), 7} - {*failed}
        runner.check(held)
        for key in held:
            runner.free(key)
        runner.check([])


def test_a_request_that_grows_too_long_leaves_what_it_has_read(
    refuse_tensor: Callable[[int], list[int]],
) -> None:
    prompt = some(3, 1500)
    runner = choice.on_torch(model(), max_batch=2)
    wanted = write(choice.on_torch(model()), 0, prompt)
    with torch.inference_mode():
        runner.forward([Work(0, prompt[:512], None)])
        for number in range(1, 9):
            refuse_tensor(number)
            with pytest.raises(MemoryError):
                runner.forward([Work(0, prompt[512:1024], None)])
            assert runner.cached(0) == 512 and slots(runner, 0) == 512
            runner.check([0])
    refuse_tensor(0)
    assert write(runner, 0, prompt) == wanted


def test_a_long_prompt_among_short_ones_fails_alone_and_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the system says is free is believed before anything is taken."""
    runner = choice.on_torch(model(), max_batch=4)
    short, long = some(4, 20), some(5, 3000)
    wanted = write(runner, 0, short)
    room = 600 * 4 * 2 * 2 * 12 * 8  # slots x layers x pair x heads x size x bytes
    monkeypatch.setattr(kv, "SMALL", 0)
    monkeypatch.setattr(kv, "available_bytes", lambda _: room)
    for attempt in range(1, 4):
        with pytest.raises(MemoryError, match=r"1,024 tokens take .* are free"):
            write(runner, 100 + attempt, long)
        runner.free(100 + attempt)
        assert write(runner, attempt, short) == wanted
    runner.check(range(4))


def test_what_is_kept_for_later_makes_way(refuse_tensor: Callable[[int], list[int]]) -> None:
    runner = choice.on_torch(model(), max_batch=4, prefix_cache=True)
    for key in range(2):
        runner.begin(key, some(key, 40))
        write(runner, key, some(key, 40))
        runner.free(key)
    assert len(runner._cache._parked) == 2
    refuse_tensor(1)
    write(runner, 2, some(6, 40))
    assert list(runner._cache._parked) == [1]  # the one that was used last
    runner.check([2])


def test_a_row_is_as_long_as_its_text_and_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.runners.rows.SPARE", 0.0)
    runner = choice.on_torch(model(), max_batch=17)
    for key in range(16):
        write(runner, key, some(key, 20))
    rows = {key: runner._cache._held[row] for key, row in runner._cache.rows.items()}
    write(runner, 16, some(16, 1200))
    assert slots(runner, 16) == 2048
    for key, held in rows.items():  # nobody else was touched
        assert runner._cache._held[runner._cache.rows[key]] is held
        assert held.slots == FIRST_SLOTS
    long = weakref.ref(runner._cache._held[runner._cache.rows[16]].layers[0][0])
    runner.free(16)
    assert long() is None
    for key in range(16):
        runner.free(key)
    assert {held.slots for held in runner._cache._held.values()} == {FIRST_SLOTS}
    tensors = [weakref.ref(part) for held in rows.values() for part in held.layers[1]]
    del rows, held
    runner.close()
    assert [each() for each in tensors] == [None] * 32


def test_growing_copies_a_text_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, real = [0], kv._copied

    def counting(old: torch.Tensor, slots: int) -> torch.Tensor:
        copied[0] += old.shape[1]
        return real(old, slots)

    monkeypatch.setattr(kv, "_copied", counting)
    held = KVCache(32, 1 << 20)
    key = torch.zeros(1, 1, 1)
    with torch.inference_mode():
        for at in range(3000):
            held.write(0, held.reserve(0, at + 1), at, key, key)
        assert copied[0] <= 2 * 2 * 3000  # keys and values
        copied[0] = 0
        for arrival in range(1, 32):
            held.write(0, held.reserve(arrival, 1), 0, key, key)
    assert copied[0] == 0


def test_rows_that_nobody_had_cost_nothing() -> None:
    held = KVCache(100_000, 1 << 20)
    assert len(held._free()) == 1  # not a list of them all, which may be more than fits in memory
    for given in (model(), "bundled"):  # on torch, and natively
        with dp.LLM(given, max_batch=10**12, speculate=None) as llm:
            outs = llm.generate([[5, 6], [7]], dp.SamplingParams(max_tokens=2))
        assert [len(out.token_ids) for out in outs] == [2, 2]


def test_the_nodes_of_a_tree_lie_beyond_the_longest_text() -> None:
    runner = choice.on_torch(model(), max_length=8)
    wide = TokenTree([5, 6, 7, 8, 9], [-1, 0, 0, 0, 0])
    runner.forward([Work(0, some(0, 6), wide)])
    runner.keep(0, [0, 3])
    assert slots(runner, 0) > runner.max_length == runner.cached(0) == 8
    runner.check([0])
    runner.free(0)


def test_layers_may_differ_in_heads_sizes_and_types() -> None:
    held, shapes = KVCache(3, 4096), {0: (2, 4, 4), 1: (1, 6, 3), 5: (4, 2, 2)}
    kinds = {0: torch.float32, 1: torch.float64, 5: torch.bfloat16}
    wanted: dict[tuple[int, int], list[torch.Tensor]] = {}
    with torch.inference_mode():
        for key, count in ((0, 10), (1, 700), (0, 300)):
            row, at = held.reserve(key, count), held.lengths[key]
            for layer, (heads, size, value_size) in shapes.items():
                generator = torch.Generator().manual_seed(layer + count)
                pair = [
                    torch.rand(heads, count, each, generator=generator).to(kinds[layer])
                    for each in (size, value_size)
                ]
                held.write(layer, row, at, pair[0][:, at:], pair[1][:, at:])
                before = wanted.get((key, layer), [part[:, :0] for part in pair])
                wanted[key, layer] = [
                    torch.cat([old, new[:, at:]], 1) for old, new in zip(before, pair, strict=True)
                ]
            held.lengths[key] = count
        held.copy(held.rows[1], 2, 650)
        held.lengths[2] = 650
        for layer in shapes:
            wanted[2, layer] = [part[:, :650] for part in wanted[1, layer]]
        for key in range(3):
            held.move(held.rows[key], [5, 9, 7], 4)
            for layer in shapes:
                read = held.read(layer, held.rows[key], held.lengths[key])
                for got, want in zip(read, wanted[key, layer], strict=True):
                    moved = want.clone()
                    moved[:, 4:7] = want[:, [5, 9, 7]]
                    assert torch.equal(got[0], moved) and got.dtype == kinds[layer]
    held.check(range(3))


def test_the_owner_may_convert_the_model_between_calls() -> None:
    made = tiny.model(dtype=torch.float32)
    runner = choice.on_torch(made)
    prompt = some(7, 20)
    write(runner, 0, prompt)
    runner.free(0)
    made.double()
    assert write(runner, 1, prompt) == write(choice.on_torch(made), 0, prompt)


def test_in_a_container_its_own_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, host = torch.device("cpu"), kv.available_bytes(torch.device("cpu"))
    monkeypatch.setattr(kv, "GROUP", tmp_path)
    assert host is not None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000000\nactive_file 7\n")
    assert kv.available_bytes(cpu) == pytest.approx(host, rel=0.2)  # no limit
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert kv.available_bytes(cpu) == 800_000_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert kv.available_bytes(cpu) == 0
    (tmp_path / "memory.stat").unlink()
    assert kv.available_bytes(cpu) == pytest.approx(host, rel=0.2)
