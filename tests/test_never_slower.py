"""The programs that measure whether `auto` is ever slower still run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from draftproof import native

PROGRAMS = Path(__file__).parent.parent / "benchmarks" / "never_slower"
CELL = "bundled, bfloat16, humaneval, batch 1, T=0"


@pytest.mark.slow
@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_the_best_setting_found_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "hindsight.json"
    command = [sys.executable, str(PROGRAMS / "hindsight.py"), "--only", CELL, "--out", str(out)]
    command += ["--turns", "1", "--rounds", "1", "--minutes", "1", "--max-tokens", "8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    (cell,) = json.loads(out.read_text())["cells"].values()
    assert cell["rounds"] == 1 and cell["differing"] == 0 and cell["best"] in cell["replayed"]
