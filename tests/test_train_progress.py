"""What `draftproof train` shows while it runs, with and without a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from draftproof.cli import progress, training
from draftproof.cli.progress import Running
from draftproof.training.trainer import Plan, State


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A watch that writes to a file, its clock, and the file."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    file = io.StringIO()
    running = Running(sure_s=training.SURE_S, console=Console(file=file, width=200))
    return training.Shown(running, lambda shown: "agrees 50%"), clock, file


def left(shown: training.Shown) -> str:
    return str(shown.running._bar.tasks[0].fields["left"])


def test_a_log_has_a_line_a_minute(log: Any) -> None:
    shown, clock, file = log
    shown.phase("training")
    plan = Plan(1000, 2)
    for step in range(1, 301):
        clock.now += 1
        shown.step(State(step=step, seconds=step, tokens=10 * step), {"loss": 2.0}, plan)
        if step % 60 == 0:  # as its thread does
            shown.running.tell()
    first, *lines = file.getvalue().splitlines()
    assert first == "training" and len(lines) == 5
    assert "step 60 of 1000  loss 2.000  agrees 50%  10 tokens/s, 6% done" in lines[0]
    assert "about 16 min left" in lines[0] and "about 12 min left" in lines[4]


def test_no_time_is_told_before_it_means_something(log: Any) -> None:
    shown, clock, _ = log
    shown.phase("the engine serves")
    shares = {1: 0.001, 5: 0.4, 9: 0.5, 21: 0.6, 41: 1.0}
    said = {}
    for now, share in shares.items():
        clock.now = float(now)
        shown.share(share)
        said[now] = left(shown)
    assert said == {1: "", 5: "", 9: "", 21: "about 13 s left", 41: ""}
    shown.phase("another")  # is counted from its own beginning
    clock.now = 60.0
    shown.share(0.5)
    assert left(shown) == ""


def test_a_resumed_training_counts_from_where_it_went_on(log: Any) -> None:
    shown, clock, _ = log
    shown.phase("training")
    for now, step in ((0, 900), (20, 950)):
        clock.now = float(now)
        shown.step(State(step=step), {"loss": 2.0}, Plan(1000, 2))
    assert left(shown) == "about 20 s left"


def test_a_score_says_what_it_is(log: Any) -> None:
    shown, _, file = log
    shown.phase("training")
    figures = {"loss": 2.0, "held-out score": 2.448}
    shown.step(State(step=1, seconds=1), figures, Plan(10, 2))
    assert "2.448 tokens/step expected on held-out data" in file.getvalue()
