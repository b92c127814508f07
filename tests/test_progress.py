"""Progress: what runs is named, and nothing is estimated before it means something."""

from __future__ import annotations

import time

import pytest

from draftproof.cli import progress
from draftproof.cli.progress import Running


def test_a_line_now_and_then_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Running(every_s=0.01) as running:
        running("warming up: ngram", None)
        time.sleep(0.1)
        running("round 1 of 2: none", 0.25)
        time.sleep(0.1)
        running("round 2 of 2: none", 0.75)
        time.sleep(0.1)
    lines = list(dict.fromkeys(capsys.readouterr().err.splitlines()))
    assert lines[-3:-1] == ["warming up: ngram", "round 1 of 2: none, 25% done"]
    assert lines[-1].startswith("round 2 of 2: none, 75% done, about ")


def test_what_is_left_is_at_the_pace_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    running = Running()
    assert running._left(None) == ""
    running("a", 0.5)  # where it began: what came before took another time
    now += 30
    assert running._left(0.51) == "" and running._left(0.75) == "about 30 s left"
    now += 270
    assert running._left(0.6) == "about 20 min left"
