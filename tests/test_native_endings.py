"""Threads, forks and the end of the process under native passes: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import endings
from draftproof import native

pytestmark = [
    pytest.mark.skipif(native.found() is None, reason="the kernels were not built"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
]
ENDINGS = (
    "exit_under_a_pass",
    "close_under_a_pass",
    "generate_at_exit",
    "no_room_for_threads",
    "child_of_a_pass",
    "child_of_sleepers",
)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_no_ending_crashes_or_hangs(rounds: int) -> None:
    program = Path(endings.__file__)
    command = [sys.executable, str(program), str(rounds), *ENDINGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.stdout.splitlines() == [name + " 0" * rounds for name in ENDINGS], done.stderr
