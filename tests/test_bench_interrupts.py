"""Ctrl-C in the middle of `draftproof bench`: what is finished is printed and written."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli.progress import Running

SMALL = ("--max-tokens=4", "--num-prompts=1", "--rounds=3", "--methods=ngram", "--against=")


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends SIGINT when what is told of the progress begins so, and never again."""
    real = Running.__call__

    def at(beginning: str) -> None:
        def tell(self: Running, text: str, share: float | None) -> None:
            real(self, text, share)
            if text.startswith(beginning):
                monkeypatch.setattr(Running, "__call__", real)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Running, "__call__", tell)

    return at


def test_finished_rounds_are_printed_and_written(run: Any, interrupt: Any, tmp_path: Path) -> None:
    interrupt("round 2 of 3")
    result = run("bench", "T", *SMALL, "--out", str(tmp_path))
    assert result.code == 130 and "Traceback" not in result.err
    said = "interrupted after 1 of 3 rounds at T=0, batch 1"
    assert f"incomplete: {said}" in result.out and "draftproof generate " in result.out
    (file,) = tmp_path.glob("*-incomplete.json")
    found = json.loads(file.read_text())
    assert found["incomplete"] == said
    rounds = {each["side"]: len(each["tokens_per_s"]) for each in found["results"]}
    assert rounds == {"draftproof none": 1, "draftproof ngram": 1}


def test_cases_that_were_finished_are_kept_whole(run: Any, interrupt: Any, tmp_path: Path) -> None:
    interrupt("T=0.7, batch 1, warming up")
    cases = ("--temperature=0", "--temperature=0.7")
    result = run("bench", "T", *SMALL, *cases, "--out", str(tmp_path))
    assert result.code == 130 and "Traceback" not in result.err
    (file,) = tmp_path.glob("*-incomplete.json")
    found = json.loads(file.read_text())
    assert {each["temperature"] for each in found["results"]} == {0.0}
    assert {len(each["tokens_per_s"]) for each in found["results"]} == {3}


@pytest.mark.parametrize("where", ["loading", "measuring passes", "warming up", "round 1 of 3"])
def test_before_a_round_is_finished_nothing_is_written(
    run: Any, interrupt: Any, tmp_path: Path, where: str
) -> None:
    interrupt(where)
    result = run("bench", "T", *SMALL, "--out", str(tmp_path))
    assert result.code == 130 and "Traceback" not in result.err
    assert result.out == "" and list(tmp_path.iterdir()) == []
