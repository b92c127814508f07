"""The programs that measure whether `auto` is ever slower still run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftproof import native

PROGRAMS = Path(__file__).parent.parent / "benchmarks" / "never_slower"
CELL = "bundled, bfloat16, humaneval, batch 1, T=0"


def _run(program: str, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAMS / program), "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_decisions_over_recorded_texts_are_the_same_every_time(tmp_path: Path) -> None:
    given = ["--cell", CELL, "--kept", str(tmp_path / "kept")]
    given += ["--num-prompts", "2", "--max-tokens", "24", "--batch", "1", "--batch", "2"]
    first, again = (_run("recorded.py", tmp_path / "table.json", *given)["rows"] for _ in range(2))
    assert first == again
    assert [row["batch"] for row in first] == [1, 2]
    assert all(0 < row["best"] <= row["plain"] for row in first)
    assert all(row["auto"] >= 0.5 * row["best"] for row in first)


@pytest.mark.slow
@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_the_best_setting_found_afterwards(tmp_path: Path) -> None:
    given = ["--only", CELL, "--turns", "1", "--rounds", "1", "--minutes", "1", "--max-tokens", "8"]
    (cell,) = _run("hindsight.py", tmp_path / "hindsight.json", *given)["cells"].values()
    assert cell["rounds"] == 1 and cell["differing"] == 0 and cell["best"] in cell["replayed"]
