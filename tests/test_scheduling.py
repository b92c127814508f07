"""Who reads how much of a prompt in a step; a prompt is read once for all its completions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.curves import attended
from draftproof.scheduler import Scheduler
from fakes import Table, V, Wild, request, run


def steps_until(engine: Engine, done: Request) -> int:
    for count in range(1, 10_000):
        if done in engine.step():
            return count
    raise AssertionError("it never came")


def test_a_short_prompt_passes_a_long_one_and_both_go_on() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(4))
    long, short = request(0, [1] * 6000), request(1, [2, 3, 4, 5])
    engine.add(long)
    engine.step()
    engine.add(short)
    assert steps_until(engine, short) == 1
    read = [sizes.get(0, 0) for sizes in runner.passes]
    assert read == [512, 509]  # what the short one needs is all that it takes
    assert steps_until(engine, long) <= 6000 // 500


def test_nobody_waits_for_ever_behind_those_who_come_later() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(2, prompt_budget=64))
    long = request(0, [1] * 1000)
    engine.add(long)
    for key in range(1, 1000):
        engine.add(request(key, [2] * 64, max_tokens=1))
        if long in engine.step():
            break
    assert key <= 1000 / 32 + 2


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    st.integers(1, 600),
)
def test_shares_of_the_budget(unread: list[int], budget: int) -> None:
    shares = Scheduler(12, budget)._shares(unread, budget)
    assert all(0 <= share <= left for share, left in zip(shares, unread, strict=True))
    assert sum(shares) == min(budget, sum(unread))
    first = next((at for at, left in enumerate(unread) if left), 0)
    assert shares[first] >= min(unread[first], budget // 2)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_prompt_is_read_once_for_its_completions(batch: int, drafts: bool) -> None:
    """And what they write is what they write alone."""
    runner, prompt, keys = Table(), [1 + i % 5 for i in range(1300)], range(8)
    proposer = Wild(0, Table()) if drafts else None
    engine = Engine(runner, proposer, scheduler=Scheduler(batch), vocabulary=V)
    params = dp.SamplingParams(temperature=1.0, max_tokens=9, n=8)

    def completions(siblings: Sequence[int]) -> list[Request]:
        made = [Request(k, prompt, params, seed=5, index=k, siblings=siblings) for k in keys]
        for each in made:
            each.params = dp.SamplingParams(temperature=1.0, max_tokens=3 + each.index % 4)
        return made

    made = completions(keys)
    run(engine, made)
    read = sum(sizes.get(key, 0) for sizes in runner.passes for key in keys)
    written = sum(len(each.output) for each in made)
    assert read < len(prompt) + (10 if drafts else 1) * 3 * written
    other = completions(())
    run(Engine(Table(), scheduler=Scheduler(2)), other)
    assert [each.output for each in made] == [each.output for each in other]
    assert len({tuple(each.output) for each in made}) > 1


def test_completions_of_a_prompt_whose_first_is_aborted_or_fails() -> None:
    runner, prompt = Table(), [1 + i % 5 for i in range(1300)]
    engine = Engine(runner, scheduler=Scheduler(3))
    made = [request(key, prompt, siblings=range(4), seed=key) for key in range(4)]
    for each in made:
        engine.add(each)
    engine.step()
    engine.abort(made[0])
    list(engine.run(made))
    engine.check()
    assert [each.finish_reason for each in made] == ["abort", *["length"] * 3]
    assert runner.committed == {}
    read = sum(sum(sizes.values()) for sizes in runner.passes)
    assert read < 512 + len(prompt) + 200


@pytest.mark.parametrize("budget", [7, 64, 512])
def test_the_passes_of_a_prompt_attend_to_what_stands_before(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice reads what is behind it once more."""
    engine = Engine(Table(), scheduler=Scheduler(1, prompt_budget=budget))
    seen: list[tuple[int, float]] = []
    costs = engine.drafts.costs
    monkeypatch.setattr(costs, "observe", lambda rows, reading, _: seen.append((rows, reading)))
    run(engine, [request(0, [number % V for number in range(200)], max_tokens=1)])
    assert sum(rows for rows, _ in seen) == 200
    at = 0
    for rows, reading in seen:
        assert reading == attended(rows, at)
        at += rows
