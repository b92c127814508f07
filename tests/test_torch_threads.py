"""Threads of torch are the runner's for the length of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof import clock
from draftproof.runners import costs
from draftproof.runners.base import KEY, Work
from kin import TREE, fresh, native_is_there


@pytest.fixture(name="threads")
def _threads() -> Iterator[tuple[int, int]]:
    """How many torch has, and another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2, 1
    torch.set_num_threads(before)


def test_threads_are_the_runners_for_the_length_of_a_pass(threads: tuple[int, int]) -> None:
    have, asked = threads
    model, seen = fresh(), []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    with dp.LLM(model, threads=asked, speculate="ngram") as llm:
        assert torch.get_num_threads() == have
        del seen[:]
        for _ in llm.stream([5, 6, 7], dp.SamplingParams(max_tokens=4)):
            assert torch.get_num_threads() == have
        assert set(seen) == {asked}
        beside_it = dp.LLM(llm, speculate=None)
        del seen[:]
        beside_it.generate([5, 6], dp.SamplingParams(max_tokens=2))
        assert set(seen) == {asked} and torch.get_num_threads() == have
        model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.runner.forward([Work(77, [], TREE)])
        assert torch.get_num_threads() == have


@pytest.mark.parametrize("longest", [2, 8, 9])
def test_threads_are_chosen_where_little_fits(threads: tuple[int, int], longest: int) -> None:
    """The pass that they are chosen by has no place for eight tokens behind a context."""
    with dp.LLM(fresh(), max_length=longest, speculate=None) as llm:
        (done,) = llm.generate([5], dp.SamplingParams(max_tokens=None))
        assert len(done.token_ids) == longest - 1 and done.error is None


def test_threads_of_the_native_runner_are_its_team(threads: tuple[int, int]) -> None:
    if not native_is_there():
        pytest.skip("no native library")
    have, asked = threads
    with dp.LLM(
        tiny.model(dtype=torch.bfloat16, head_dim=16),
        runner="native",
        threads=asked,
        speculate=None,
    ) as llm:
        assert llm.runner.team.threads == asked and torch.get_num_threads() == have
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=3))
        assert torch.get_num_threads() == have


@pytest.mark.parametrize(("alone", "together", "chosen"), [(1.0, 1.0, 1), (1.0, 0.8, None)])
def test_a_small_pass_is_on_one_thread_unless_more_are_faster(
    threads: tuple[int, int],
    alone: float,
    together: float,
    chosen: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the clock says, which is asked once for every model that is loaded."""
    asked = []

    def interleaved(sides: dict[str, Any], rounds: int, warm: int = 1) -> dict[str, list[float]]:
        for side in sides.values():
            side()
        asked.append([*sides])
        seconds = {"alone": alone * 0.01, "together": together * 0.01}
        return {name: [seconds[name]] * rounds for name in sides}

    monkeypatch.setattr(clock, "interleaved", interleaved)
    seen: list[int] = []
    model = fresh()
    with dp.LLM(model, speculate=None) as llm:
        assert asked == [["alone"], ["alone", "together"]]
        assert llm.runner.threads == chosen and not llm.runner.cached(KEY)
        model.model.layers[0].register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=2))
        assert {*seen} == {chosen or threads[0]} and torch.get_num_threads() == threads[0]
    assert dp.LLM(fresh(), threads=2, speculate=None).runner.threads == 2 and len(asked) == 2


def test_a_large_pass_has_all_threads(
    threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "SMALL", 0.0)
    assert dp.LLM(fresh(), speculate=None).runner.threads is None


@pytest.mark.parametrize("runner", ["native", "torch"])
def test_behind_a_native_pass_torch_works_on_one_thread(
    runner: str, threads: tuple[int, int]
) -> None:
    """Its threads would go on spinning on the cores that the next pass needs."""
    if runner == "native" and not native_is_there():
        pytest.skip("no native library")
    seen: list[int] = []

    def process(ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return row if len(seen) < 4 else row / 0 * 0  # in the end there is nothing to pick from

    dtype = torch.bfloat16 if runner == "native" else torch.float32
    with dp.LLM(tiny.model(head_dim=16, dtype=dtype), runner=runner, speculate=None) as llm:
        asked = llm.submit([5, 6, 7], dp.SamplingParams(max_tokens=6, ignore_eos=True))
        asked[0].history.process = process
        list(llm.engine.run(asked))
        assert asked[0].finish_reason == "error"
        assert {*seen} == {1 if runner == "native" else 2}
        assert torch.get_num_threads() == 2
