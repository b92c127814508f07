"""Eight threads, whatever users do, faults in between; and that this finds what it is there for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftproof import native

STRESS = Path(__file__).resolve().parent / "stress"
RUNNERS = ["torch", "native"]


def stressed(runner: str, seconds: float, seed: int) -> dict[str, int]:
    """In a process of its own: its threads are many, and may hang."""
    command = [sys.executable, str(STRESS / "crowd.py"), runner, str(seconds), str(seed)]
    paths = {**os.environ, "PYTHONPATH": str(STRESS.parent / "support")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, env=paths)
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = eval(done.stdout.strip().splitlines()[-1])
    return counts


def seen(counts: dict[str, int]) -> None:
    """Everything that may happen did."""
    for what in ("length", "stop", "abort", "error", "streamed"):
        assert counts.get(what, 0) > 0, counts


@pytest.mark.parametrize(
    ("runner", "seconds", "seed"),
    [
        ("native", 4, 0),
        *(pytest.param(runner, 300, 1, marks=pytest.mark.slow) for runner in RUNNERS),
    ],
)
def test_everything_at_once(runner: str, seconds: float, seed: int) -> None:
    if runner == "native" and native.found() is None:
        pytest.skip("the native kernels are not built")
    seen(stressed(runner, seconds, seed))


@pytest.mark.slow
def test_it_finds_what_it_is_there_for() -> None:
    done = subprocess.run(
        [sys.executable, str(STRESS / "planted.py")], capture_output=True, text=True, timeout=1800
    )
    first, *others = done.stdout.strip().splitlines()
    assert "not found" in first, done.stdout
    assert len(others) == 5 and not any("not found" in line for line in others), done.stdout
