"""Compiles grammars for trial in a process beside this one, which can be ended; see `trial`."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from draftproof.sampling.grammars import Busy

TRIAL = Path(__file__).with_name("trial.py")
START = 60.0  # seconds until it is ready


class TooMuch(ValueError):
    """A trial took too long, or too much memory."""


class Judge:
    """table: what `trial.table_of` takes. Any number of threads may ask; one trial runs at a time.

    The process starts at once, and again behind each trial that it was ended in.
    """

    def __init__(self, table: tuple[str, int, list[int]]) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ready = False
        self._start()

    def check(self, written: str, seconds: float) -> str | None:
        """What is wrong with a grammar, in llguidance's words. Raises `TooMuch`, and `Busy`."""
        if not self._lock.acquire(timeout=seconds):
            raise Busy
        try:
            try:
                if not self._ready:
                    self._answer(START)
                    self._ready = True
                self._tell(written)
                said: str | None = json.loads(self._answer(seconds))
                return said
            except BaseException:  # an interrupt too: nobody would take its answer
                self._end()
                self._start()
                raise
        finally:
            self._lock.release()

    def _start(self) -> None:
        command = [sys.executable, "-P", str(TRIAL)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a terminal's interrupt is for who asks
            )
        except OSError as error:
            raise ValueError(
                f"a grammar is compiled for trial in a process, which cannot be started: {error}"
            ) from error
        self._answers, self._ready = queue.SimpleQueue(), False
        reads = threading.Thread(target=_read, args=(self._process.stdout, self._answers))
        reads.daemon = True
        reads.start()
        self._end = weakref.finalize(self, _ended, self._process)
        self._end.atexit = True
        self._tell(self._table)

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: there is no answer
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def _answer(self, seconds: float) -> str:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TooMuch(f"takes more than {seconds:g} s to compile: make it simpler") from None
        if not line:
            raise TooMuch("takes more memory to compile than there is for it: make it simpler")
        return line


def _read(lines: Any, answers: queue.SimpleQueue[str]) -> None:
    """Each line as it comes, and "" at the end."""
    with lines:
        for line in lines:
            answers.put(line)
    answers.put("")


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
