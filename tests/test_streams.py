"""Standard output and standard error that are full, closed, narrow or of another encoding."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from draftproof.cli import streams

SHORT = ("--max-tokens", "4")
FULL = "error: cannot write standard output: No space left on device; send it elsewhere, or "


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A file on a disk without room."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as file:
        yield file


@pytest.mark.parametrize("words", ["generate T p", "generate T p --json", "info", "--help"])
def test_output_without_room(
    run: Any, full: TextIO, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    code, _, err = run(*words.split(), *(SHORT if "generate" in words else ()))
    assert code == 2 and err.startswith(FULL) and err.count("\n") == 1


def test_an_answer_of_a_conversation_without_room(
    chat: Any, full: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    code, _, err = chat(*SHORT, lines=["hello", "what now?"])
    assert code == 2 and err.startswith(FULL) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("generate T p --stats", 0), ("generate T p --method ngram --stats", 0), ("generate T", 2)],
)
def test_notes_without_room(
    run: Any, full: TextIO, monkeypatch: pytest.MonkeyPatch, words: str, wanted: int
) -> None:
    """They are lost, and nothing else is."""
    whole = run(*words.split(), *SHORT)
    monkeypatch.setattr(sys, "stderr", full)
    code, out, _ = run(*words.split(), *SHORT)
    assert (code, out) == (wanted, whole.out) == whole[:2]


def test_notes_without_a_stream(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shell's 2>&-: they stand in no output."""
    whole = run("generate", "T", "p", "--stats", *SHORT)
    monkeypatch.setattr(sys, "stderr", None)
    assert run("generate", "T", "p", "--stats", *SHORT)[:2] == (0, whole.out)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_python_ends_as_the_command_did(full: TextIO, stream: str) -> None:
    """What Python itself cannot write at its end would change the exit code, or leave a trace."""
    program = "from draftproof.__main__ import main; main()"
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: full}
    done = subprocess.run([sys.executable, "-c", program, "dance"], **given, text=True)
    assert done.returncode == 2
    done = subprocess.run([sys.executable, "-c", program, "--version"], **given, text=True)
    assert done.returncode == (2 if stream == "stdout" else 0)
    assert stream == "stderr" or (done.stderr.startswith(FULL) and done.stderr.count("\n") == 1)


def test_output_that_takes_ascii_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, told in (("na\xefve \u65e5\n", True), ("plain\n", False)):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", out)
        with streams.kept():
            print(text, end="")
        assert out.buffer.getvalue() == text.encode("ascii", "backslashreplace")
        err = capsys.readouterr().err
        assert ("standard output takes ascii alone" in err) is told and err.count("\n") == told


@pytest.mark.parametrize("columns", ["0", "00"])
def test_a_terminal_that_is_said_to_have_no_columns(
    run: Any, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert "tokens/s" in run("generate", "T", "p", "--stats", *SHORT).err
    assert "COLUMNS" not in os.environ
