"""`draftproof batch --ray`: actors of Ray itself, killed on their way, and those with no place."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from batches import in_order, line, some, write

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs draftproof[ray]"),
]
COUNT = 120
ENGINE = "ray::BatchEngine"


def lines(count: int) -> list[Any]:
    """One of them is no call, and one is refused."""
    made: list[Any] = [
        line(each["custom_id"], each["body"] | {"max_tokens": 60}) for each in some(count)
    ]
    made[5]["body"]["max_tokens"] = 10**6
    return ["{", *made]


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a command whose Ray is of it alone."""
    return os.environ | {"RAY_ADDRESS": "local", "RAY_TMPDIR": "/tmp"}


def command(pair: Path, asked: Path, out: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "draftproof", "batch", str(asked), "--out", str(out)]
    words += ["--target", "target", "--draft", "draft", "--dtype", "float64", "--max-batch", "4"]
    return [*words, *more]


@contextmanager
def running(words: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[Any]:
    """In the folder of the pair, whose names are told to the actors as paths."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder, env=env) as process:
        yield process


def engines(process: Any) -> list[psutil.Process]:
    """The actors of this command that are there."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        try:
            title = (each.cmdline() or [""])[0]
        except psutil.Error:  # it has just ended
            continue
        if title.startswith(ENGINE):
            found.append(each)
    return found


def grown(process: Any, out: Path, size: int) -> None:
    while process.poll() is None and (not out.exists() or out.stat().st_size < size):
        time.sleep(0.005)


def test_as_on_one_machine(pair: Path, tmp_path: Path, alone: dict[str, str]) -> None:
    """Whatever is killed: actors in mid-line, then the command, which goes on where it was."""
    asked = write(tmp_path / "in.jsonl", lines(COUNT))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    done = subprocess.run(command(pair, asked, whole), cwd=pair, capture_output=True, text=True)
    assert done.returncode == 1 and f"{COUNT + 1} of {COUNT + 1} lines (2 with" in done.stderr
    size = whole.stat().st_size
    words = command(pair, asked, out, "--ray", "2", "--threads", "1")
    with running(words, pair, alone) as process:
        killed = set[int]()
        for share in (0.1, 0.3):
            grown(process, out, int(share * size))
            there = [each for each in engines(process) if each.pid not in killed]
            killed.add(there[0].pid)
            there[0].send_signal(signal.SIGKILL)
        grown(process, out, int(0.5 * size))
        assert process.poll() is None
        process.kill()
    assert 0 < out.stat().st_size < size
    with running(words, pair, alone) as process:
        said = process.stderr.read()
    assert process.returncode == 1 and "of them now" in said, said
    assert in_order(out) == in_order(whole)
    assert "line 1: it is no JSON" not in said  # it was told by the first one


def test_an_interrupt_ends_the_actors(pair: Path, tmp_path: Path, alone: dict[str, str]) -> None:
    asked = write(tmp_path / "in.jsonl", lines(COUNT))
    out = tmp_path / "out.jsonl"
    with running(command(pair, asked, out, "--ray", "1"), pair, alone) as process:
        grown(process, out, 2000)
        there = engines(process)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130 and "Traceback" not in said and there, said
    _, left = psutil.wait_procs(there, timeout=60)
    assert left == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--ray", "2", "--threads", "64"), "--ray 2 with 64 threads each has no place"),
        (("--ray", "1", "--device", "cuda"), "--ray gives its engines cores alone: drop --device"),
        (("--ray", "1", "--max-length", "0"), "max_length"),
        (("--ray", "1", "--threads", "0"), "threads=0 computes nothing: use 1 or more"),
    ],
)
def test_what_cannot_be_done_is_told(
    pair: Path, tmp_path: Path, alone: dict[str, str], more: tuple[str, ...], said: str
) -> None:
    asked = write(tmp_path / "in.jsonl", lines(9))
    words = command(pair, asked, tmp_path / "out.jsonl", *more)
    done = subprocess.run(words, cwd=pair, env=alone, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "Ray cannot be reached or started"),
        ("127.0.0.1:9", "no cluster answers at 127.0.0.1:9"),
    ],
)
def test_a_ray_that_is_not_there(
    pair: Path, tmp_path: Path, alone: dict[str, str], address: str, said: str
) -> None:
    asked = write(tmp_path / "in.jsonl", lines(9))
    words = command(pair, asked, tmp_path / "out.jsonl", "--ray", "1")
    env = alone | {"RAY_ADDRESS": address}
    done = subprocess.run(words, cwd=pair, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr
    assert "Traceback" not in done.stderr
