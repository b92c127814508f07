"""Threads of torch are the runner's for the length of a pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.runners.base import Work
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
        beside_it = dp.LLM(llm)
        del seen[:]
        beside_it.generate([5, 6], dp.SamplingParams(max_tokens=2))
        assert set(seen) == {asked} and torch.get_num_threads() == have
        model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.runner.forward([Work(77, [], TREE)])
        assert torch.get_num_threads() == have


def test_threads_of_the_native_runner_are_its_team(threads: tuple[int, int]) -> None:
    if not native_is_there():
        pytest.skip("no native library")
    have, asked = threads
    with dp.LLM(
        tiny.model(dtype=torch.bfloat16, head_dim=16), runner="native", threads=asked
    ) as llm:
        assert llm.runner.team.threads == asked and torch.get_num_threads() == have
        llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=3))
        assert torch.get_num_threads() == have
