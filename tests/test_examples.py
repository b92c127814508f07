"""The examples run as they stand, and none says that its output differs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text().splitlines()) <= 30
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert out.strip() and "identical: False" not in out


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
