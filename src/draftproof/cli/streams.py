"""Standard output and standard error of a command, and what becomes of what cannot go there.

What is wrong with output ends the command, in one sentence; a note that nobody can read ends
nothing. A character that the encoding lacks is escaped, which is told at the end.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

ESCAPED = "draftproof.escaped"  # the name of a way to write what an encoding lacks
SIZES = "COLUMNS", "LINES"  # of a terminal; some set 0 where there is none


class Stream:
    """One of Python's streams. failed: takes the error of what could not be written."""

    def __init__(self, stream: Any, failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def kept() -> Iterator[None]:
    """The streams of a command that runs inside."""
    for name in SIZES:
        if set(os.environ.get(name, "")) == {"0"}:
            del os.environ[name]
    with open(os.devnull, "w") as nowhere:
        out, notes = sys.stdout, sys.stderr or nowhere
        escaped = _escaping(out)
        given: Any = None if out is None else Stream(out, _refuse)
        listening: Any = Stream(notes, lambda error: None)
        with redirect_stdout(given), redirect_stderr(listening):
            yield
            if escaped:
                print(
                    f"warning: standard output takes {out.encoding} alone, and what else was "
                    "written stands there as \\uXXXX: set PYTHONIOENCODING=utf-8",
                    file=sys.stderr,
                )
        for stream in filter(None, (out, notes)):
            try:
                stream.flush()
            except OSError:  # never again; do not let the interpreter try
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refuse(error: OSError) -> None:
    """Raises it in a sentence, unless whoever reads it has seen enough."""
    if isinstance(error, BrokenPipeError):
        raise error
    raise OSError(
        f"cannot write standard output: {error.strerror or error}; send it elsewhere, or make room"
    ) from error


def _escaping(out: Any) -> list[bool]:
    """Have what the encoding lacks escaped; something is in the list once that was needed."""
    needed: list[bool] = []

    def escape(error: UnicodeError) -> tuple[str | bytes, int]:
        needed[:] = [True]
        return codecs.backslashreplace_errors(error)

    if getattr(out, "errors", None) in ("strict", ESCAPED):
        codecs.register_error(ESCAPED, escape)
        out.reconfigure(errors=ESCAPED)
    return needed
