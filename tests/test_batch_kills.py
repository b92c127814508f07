"""`draftproof batch` as a process: killed at random moments, and on a disk that is full."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batches import answers, in_order, some, write

pytestmark = pytest.mark.slow
COUNT, KILLS = 150, 5
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from draftproof.cli import main
main()
"""


def command(pair: Path, asked: Path, out: Path, *more: str) -> list[str]:
    words = ["batch", str(asked), "--out", str(out), "--target", str(pair / "target")]
    return [*words, "--dtype", "float64", "--draft", str(pair / "draft"), *more]


def test_killed_at_random_moments(pair: Path, tmp_path: Path) -> None:
    asked = write(tmp_path / "in.jsonl", some(COUNT))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    start = [sys.executable, "-m", "draftproof"]
    done = subprocess.run([*start, *command(pair, asked, whole)], capture_output=True, text=True)
    assert done.returncode == 0 and f"{COUNT} of {COUNT} lines" in done.stderr, done.stderr
    moments, sizes = random.Random(1), []
    for number in range(1, KILLS + 1):
        most = whole.stat().st_size * number // (KILLS + 1)
        with subprocess.Popen([*start, *command(pair, asked, out, "--quiet")]) as process:
            while process.poll() is None and (not out.exists() or out.stat().st_size < most):
                time.sleep(0.002)
            time.sleep(moments.random() / 20)
            process.kill()
        sizes.append(out.stat().st_size)
    assert sizes == sorted(sizes) and 0 < sizes[-1] < whole.stat().st_size
    done = subprocess.run([*start, *command(pair, asked, out)], capture_output=True, text=True)
    assert done.returncode == 0 and "of them now" in done.stderr, done.stderr
    assert in_order(out) == in_order(whole) and len(answers(out)) == COUNT


def test_a_full_disk_keeps_what_is_finished(pair: Path, tmp_path: Path) -> None:
    """A file that may grow no further ends in the middle of a line, as on a full disk."""
    asked = write(tmp_path / "in.jsonl", some(12))
    out = tmp_path / "out.jsonl"
    limited = [sys.executable, "-c", LIMITED, "3000", *command(pair, asked, out)]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (said,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    kept = answers(out)
    assert f"{len(kept)} answers are kept: make room, and run the same command again" in said
    assert 0 < len(kept) < 12 and out.stat().st_size <= 3000 and "Traceback" not in done.stderr
    start = [sys.executable, "-m", "draftproof"]
    done = subprocess.run([*start, *command(pair, asked, out)], capture_output=True, text=True)
    assert done.returncode == 0 and kept.items() <= answers(out).items()
