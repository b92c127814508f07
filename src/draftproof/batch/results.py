"""The output of a batch, which a killed process leaves whole, and the file of statistics beside it.

A line is appended when it is done, in one write; what a write has left undone is cut off by the
next run. The first line of the statistics says of what the output is. Knows no model.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # where there is none, nobody is kept from writing the same file twice
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".stats.jsonl"


class Results:
    """The two files, of this process alone until `close`.

    of: the input. known: tells whether an answer's id is one of the input's. done: ids of the
    answers that are there. Raises `ValueError`, and changes nothing, where the output is not to be
    written.
    """

    def __init__(self, path: Path, of: str, known: Callable[[str], bool]) -> None:
        self.path, self.stats_path = path, path.with_name(path.name + SUFFIX)
        self.done: set[str] = set()
        self.wrong = 0  # of these, errors
        self._of, self._known = of, known
        self._head: dict[str, Any] = {}
        self._files: list[int] = []
        self._check(_there(path), _there(self.stats_path))
        try:
            self._out, self._stats = self._opened(path), self._opened(self.stats_path)
            self._lock()
            self._resume()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # a pipe, say
                os.fsync(file)
            os.close(file)
        self._files.clear()

    @property
    def called(self) -> str | None:
        """What the command that began the output called its model; None: that is not known."""
        return self._head.get("called")

    def written_by(self, writer: Mapping[str, Any], called: str | None = None) -> None:
        """Say who writes; raises `ValueError` where another one wrote what is there.

        writer: names of what decides a text, and values. called: what a user calls it.
        """
        before = self._head.get("written_by")
        if before is None:
            self._begin({"of": self._of, "written_by": dict(writer), "called": called})
            return
        here = json.loads(json.dumps(writer))
        for name in here:
            if before.get(name) != here[name]:
                raise ValueError(
                    f"{self.path} was begun with another {name} ({before.get(name)}, and here it "
                    f"is {here[name]}): go on as it was begun, or give another --out"
                )

    def add(self, answer: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
        """An answer, and what it took. Raises `ValueError` where it cannot be written."""
        self._append(self._out, self.path, msgspec.json.encode(answer))
        self.done.add(answer["id"])
        self.wrong += is_wrong(answer)
        self.tell(stats)

    def tell(self, stats: Mapping[str, Any]) -> None:
        """A line of statistics alone."""
        self._append(self._stats, self.stats_path, msgspec.json.encode(stats))

    def _opened(self, path: Path) -> int:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}") from error
        self._files.append(file)
        if not path.is_file():
            raise ValueError(f"{path} is no file that can be gone on with: give another --out")
        return file

    def _lock(self) -> None:
        try:
            if fcntl is not None:
                fcntl.flock(self._stats, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{self.path} is being written by another process: wait for its end, or give "
                "another --out"
            ) from None
        except OSError:  # a file system without locks
            pass

    def _check(self, out: bytes, stats: bytes) -> None:
        """Raises `ValueError` for what is there and is not ours."""
        first, ended, _ = stats.partition(b"\n")
        head, begun = _object(first), f'{{"of":"{self._of}"'.encode()
        ours = head.get("of") == self._of and isinstance(head.get("written_by"), dict)
        if (out and not ours) or (ended and not ours) or first[: len(begun)] != begun[: len(first)]:
            there = self.path if out else self.stats_path
            raise ValueError(
                f"{there} is there, and is not what a batch wrote for this input ("
                f"{self.stats_path.name} says of what an output is): give another --out"
            )
        self._head = head if ended else {}

    def _resume(self) -> None:
        """What is there already; half a line at the end of either file is cut off."""
        out, stats = _there(self.path), _there(self.stats_path)
        self._check(out, stats)
        whole = out.rfind(b"\n") + 1
        for number, line in enumerate(out[:whole].split(b"\n")[:-1], 1):
            answer = _object(line)
            id = str(answer.get("id"))
            if not self._known(id) or id in self.done:
                raise ValueError(
                    f"line {number} of {self.path} is no answer of this batch: give another "
                    "--out, or remove that line"
                )
            self.done.add(id)
            self.wrong += is_wrong(answer)
        os.ftruncate(self._out, whole)
        os.ftruncate(self._stats, stats.rfind(b"\n") + 1)

    def _begin(self, head: Mapping[str, Any]) -> None:
        """The first line of the statistics."""
        self._append(self._stats, self.stats_path, msgspec.json.encode(head))
        self._head = dict(head)

    def _append(self, file: int, path: Path, line: bytes) -> None:
        """The line, or nothing of it."""
        size, raw = _size(file, path), memoryview(line + b"\n")
        try:
            os.lseek(file, size, os.SEEK_SET)
            while raw:
                raw = raw[os.write(file, raw) :]
        except OSError as error:
            os.ftruncate(file, size)
            raise ValueError(
                f"cannot write {path}: {error.strerror}; {len(self.done):,} answers are kept: make "
                "room, and run the same command again"
            ) from error
        except BaseException:  # an interrupt
            os.ftruncate(file, size)
            raise


def is_wrong(answer: Mapping[str, Any]) -> bool:
    """Whether it tells an error."""
    response = answer.get("response")
    return not isinstance(response, dict) or response.get("status_code") != 200


def _there(path: Path) -> bytes:
    """What a file has; nothing where there is none."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _size(file: int, path: Path) -> int:
    status = os.fstat(file)
    if not (status.st_nlink or path.exists()):  # what is written there is gone with the process
        raise ValueError(f"{path} was removed while it was written: run the same command again")
    return status.st_size


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
