"""Ctrl-C while a model is loaded ends the command as one, whatever a library makes of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

from draftproof.bench import suite
from draftproof.interrupts import INTERRUPTED
from draftproof.training.jobs import setup
from draftproof.tuning import timing


def broken(*given: Any, **options: Any) -> NoReturn:
    """As lazy imports do with an interrupt."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("a library is broken") from None
    raise AssertionError("there was no interrupt")


def test_bench(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "load", broken)
    result = run("bench", "T", "--num-prompts", "1", "--out", str(tmp_path))
    assert result.code == INTERRUPTED and "broken" not in result.err


def test_train(train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "loaded", broken)
    data = ("--data", str(folder / "text.py"), "--out", str(tmp_path / "out"))
    result = train(str(folder / "T"), *data)
    assert result.code == INTERRUPTED and "broken" not in result.err


def test_a_draft_to_tune_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "beside", broken)
    target: Any = object()
    with pytest.raises(KeyboardInterrupt):
        timing.Loaded()(target, "a draft")
