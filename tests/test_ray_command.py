"""Ray's own command, `serve run`, with options that cannot be followed."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs draftproof[ray]"),
]
SERVE = "from ray.serve.scripts import cli; cli()"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("modle=bundled",), "modle cannot be followed here: it is unknown"),
        (("model=./nowhere",), "nowhere"),
        (("model=bundled", "chunk=word"), "chunk 'word' is unknown: use step or token"),
        (("model=bundled", "threads=two"), "--threads"),
        (("model=nobody/none-such",), "cannot load the model 'nobody/none-such'"),
    ],
)
def test_one_sentence(words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And Ray is not started for it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = [sys.executable, "-c", SERVE, "run", "draftproof.ray:app", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    (error,) = [each for each in done.stderr.splitlines() if each.startswith("Error: ")]
    assert done.returncode == 2 and said in error, done.stderr
    assert "Traceback" not in done.stderr and "raylet" not in done.stderr


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        with suppress(OSError):  # in use already
            other.bind(("127.0.0.1", 8000))
        other.listen()
        words = "run", "draftproof.ray:app", "model=bundled"
        done = subprocess.run(
            [sys.executable, "-c", SERVE, *words], capture_output=True, text=True, timeout=120
        )
    (error,) = [each for each in done.stderr.splitlines() if each.startswith("Error: ")]
    assert done.returncode == 2 and "127.0.0.1:8000 cannot be listened on" in error, done.stderr
    assert "Traceback" not in done.stderr and "raylet" not in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, of pydantic
def test_it_is_a_value_error() -> None:
    """Of whoever calls the application from Python."""
    from draftproof.ray import app

    with pytest.raises(ValueError, match="^modle cannot be followed here"):
        app({"modle": "bundled"})
