"""What a request holds after its end, and what a step costs behind a long text."""

from __future__ import annotations

import gc
import time
import tracemalloc
import weakref
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.sampling import SamplingParams, adjust
from draftproof.sampling.history import History
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from fakes import Table, V, Wild, request
from overhead import POOL, PoolRunner

# --- penalties follow a text that grows, branches and is taken back ---

MOVES = st.lists(
    st.one_of(
        st.lists(st.integers(0, 7), max_size=4),  # written
        st.integers(0, 6),  # so many taken back
        st.tuples(st.lists(st.integers(0, 7), max_size=4)),  # asked about behind this path
    ),
    max_size=20,
)
PENALTIES = SamplingParams(
    repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3, temperature=1.0
)


def penalised(row: list[float], prompt: list[int], output: list[int]) -> list[float]:
    """As `adjust` documents it, id by id."""
    made = []
    for token, x in enumerate(row):
        if token in prompt or token in output:
            x = x / PENALTIES.repetition_penalty if x > 0 else x * PENALTIES.repetition_penalty
        x -= PENALTIES.frequency_penalty * output.count(token)
        made.append(x - PENALTIES.presence_penalty * (token in output))
    return made


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), MOVES)
def test_penalties_of_a_text_that_moves_are_those_of_a_fresh_one(
    prompt: list[int], moves: list[Any]
) -> None:
    row = torch.linspace(-3, 3, 8, dtype=torch.float64)
    history, output = History(prompt), list[int]()
    for move in moves:
        if isinstance(move, list):
            history.append(move)
            output += move
        elif isinstance(move, int):
            output = output[: max(0, len(output) - move)]
            history.rewind(len(output))
        else:
            (path,) = move
            fresh = History(prompt)
            fresh.append(output)
            assert torch.equal(
                adjust(row, PENALTIES, history, path), adjust(row, PENALTIES, fresh, path)
            )
            text = [*prompt, *output, *path]
            assert history.ids(path).tolist() == text
            assert adjust(row, PENALTIES, history, path).tolist() == pytest.approx(
                penalised(row.tolist(), prompt, text[len(prompt) :])
            )


# --- what is let go ---


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_finished_request_holds_nothing_large(rule: str) -> None:
    llm = dp.LLM(tiny.model(), speculate=dp.DraftModel(tiny.model(seed=1)), rule=rule)
    params = dp.SamplingParams(temperature=0.9, max_tokens=8, ignore_eos=True, seed=1)
    (made,) = llm.prepare([3, 4], params)
    watched = []
    for moved in llm.engine.run([made]):
        if moved.feedback is not None:
            watched.append(weakref.ref(moved.feedback.tree))
            if moved.feedback.tree.laws is not None:
                watched.append(weakref.ref(moved.feedback.tree.laws))
    assert watched and made.finish_reason == "length"
    moved = None
    gc.collect()
    assert [each() for each in watched if each() is not None] == []
    assert not made.noise._kept and made.feedback is None and not made._generators


def test_noise_of_positions_behind_the_text_is_let_go() -> None:
    engine = Engine(Table(), Wild(0, Table()), scheduler=Scheduler(1), vocabulary=V)
    each = request(0, [1, 2], temperature=1.0, max_tokens=30)
    for _ in engine.run([each]):
        assert all(at >= len(each.tokens) for at in each.noise._kept)


# --- what a step costs ---


class Guess:
    """Drafts a chain and a sibling from the last token alone."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        return [
            TokenTree([each.tokens[-1], 1, 2, 3, 4], [-1, 0, 0, 1, 3], scores=None)
            for each in requests
        ]


def writing(length: int, **options: Any) -> Engine:
    """An engine that writes behind a text of so many tokens; the fakes look at the last one."""
    engine = Engine(PoolRunner(torch.randn(POOL, V)), Guess(), scheduler=Scheduler(1, 1 << 30))
    params = dp.SamplingParams(temperature=0.8, max_tokens=1 << 20, **options)
    each = Request(0, [1, 2, 3], params, seed=1)
    each.resume([(7 * i) % V for i in range(length)])
    each.tokens += [1] * 4096
    del each.tokens[-4096:]  # their list has room
    engine.add(each)
    for _ in range(3):
        engine.step()
    return engine


def seconds_of_a_step(length: int, **options: Any) -> float:
    """The median of the engine alone."""
    engine, seconds = writing(length, **options), []
    for _ in range(60):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def bytes_of_a_step(length: int, **options: Any) -> int:
    """The peak of what Python and numpy take for 20 steps."""
    engine = writing(length, **options)
    tracemalloc.start()
    for _ in range(20):
        engine.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


OPTIONS = [{}, {"presence_penalty": 0.5, "repetition_penalty": 1.3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_takes_no_memory_by_the_length_of_the_text(options: dict[str, Any]) -> None:
    short, long = (bytes_of_a_step(length, **options) for length in (1000, 32_000))
    assert long < 1.5 * short + 50_000, (short, long)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_takes_no_time_by_the_length_of_the_text(options: dict[str, Any]) -> None:
    for _ in range(5):  # a busy machine may be in the way
        short, long = (seconds_of_a_step(length, **options) for length in (1000, 32_000))
        if long < 1.5 * short:
            return
    raise AssertionError((short, long))


def test_many_prompts_are_not_asked_again_and_again_whether_they_have_ended() -> None:
    asked = 0

    class Counting(Request):
        @property
        def finished(self) -> bool:
            nonlocal asked
            asked += 1
            return super().finished

    engine = Engine(Table(), scheduler=Scheduler(8))
    params = dp.SamplingParams(max_tokens=3)
    made = [Counting(key, [1], params, seed=key) for key in range(1600)]
    list(engine.run(made))
    assert asked < 60 * len(made)
