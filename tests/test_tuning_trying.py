"""Settings run for real: who runs how often, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof import tuning
from draftproof.profiles import Choice, Part
from draftproof.tuning import trying
from draftproof.tuning.timing import Loaded

SPEEDS = (1.0, 1.4, 2.0, 1.1, 1.9, 1.2, 1.8, 1.3, 1.7)  # of plain decoding and eight settings
CHOICES = [Choice((Part("ngram", (("num_draft_tokens", n),)),)) for n in range(1, 9)]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of those that run, in turn: nothing is written, and each takes what it takes."""
    ran: list[int] = []

    def write(side: Any, trial: trying.Trial, *given: Any) -> list[float]:
        ran.append(CHOICES.index(trial.choice) + 1 if trial.choice.parts else 0)
        return [12.0 / SPEEDS[ran[-1]]]

    monkeypatch.setattr(trying, "_write", write)
    return ran


def run(rounds: int, finalists: int | None, choices: Sequence[Choice] = CHOICES) -> Any:
    with dp.LLM(tiny.model("llama"), speculate=None) as llm:
        params = dp.SamplingParams(max_tokens=4)
        none = float("inf")
        return trying.run(
            llm, [], choices, params, Loaded(), 1, rounds, lambda *told: None, none, finalists
        )


def test_the_slower_half_is_left_out_behind_each_round(order: list[int]) -> None:
    plain, *trials = run(4, 3)
    assert [len(trial.seconds) for trial in trials] == [1, 4, 1, 4, 1, 4, 1, 2]
    assert len(plain.seconds) == 4 and order.count(0) == 5, "it warms up, too"
    assert trials[1].speedup(plain) == pytest.approx(2.0)
    assert trials[6].speedup(plain) == pytest.approx(1.3)


def test_without_finalists_all_run(order: list[int]) -> None:
    assert all(len(trial.seconds) == 4 for trial in run(4, None))


def test_as_many_as_may_stay_all_stay(order: list[int]) -> None:
    assert all(len(trial.seconds) == 4 for trial in run(4, 3, CHOICES[:3]))


def test_what_was_left_out_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its one round looks faster than what the best have in the end."""
    names: list[str] = []

    def write(side: Any, trial: trying.Trial, *given: Any) -> list[float]:
        names.append(trial.choice.name)
        slower = 1.5 if trial.choice.parts and names.count(trial.choice.name) > 2 else 1.0
        return [slower * 12.0 / SPEEDS[list(dict.fromkeys(names)).index(trial.choice.name)]]

    monkeypatch.setattr(trying, "_write", write)
    with dp.LLM(tiny.model("llama"), speculate=None) as llm:
        found = tuning.tune(llm, [[5, 6, 7]], max_tokens=12, batches=(1,), rounds=4)
    ran = [row for row in found.rows if row.measured is not None]
    tried = [row for row in found.rows if row.differing is not None]
    assert (len(ran), len(tried)) == (3, 8)
    assert sorted(row.measured or 0 for row in ran) == pytest.approx([1.2, 1.27, 1.33], abs=0.01)
    assert found.choice in [row.choice for row in ran]
