"""Answers of the target, kept one by one, so that whoever is stopped goes on behind the last."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from draftproof.out_folders import writing
from draftproof.training import checkpoint


class Answers:
    """A file with a line for each answer, behind one that tells what they are of.

    known: tokens behind the prompt of a number. resume: what the file has of the same is known
    already, and `ValueError` if it is of something else; else it begins anew. Closed by `with`.
    """

    def __init__(self, file: Path, of: Any, resume: bool) -> None:
        self.file, self.known = file, dict[int, list[int]]()
        if resume and file.exists():
            self.known = _read(file, json.loads(json.dumps(of)))
        file.parent.mkdir(parents=True, exist_ok=True)
        with checkpoint.replacing(file) as fresh, fresh.open("w") as lines:
            _write(lines, of)
            for each in self.known.items():
                _write(lines, each)
        self._lines = file.open("a")

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def keep(self, number: int, tokens: list[int]) -> None:
        """Raises `OSError` where it cannot be written."""
        with writing(self.file):
            _write(self._lines, (number, tokens))
            self._lines.flush()
        self.known[number] = tokens


def _write(lines: TextIO, line: Any) -> None:
    lines.write(json.dumps(line) + "\n")


def _read(file: Path, of: Any) -> dict[int, list[int]]:
    """Those of a file that is of `of`, up to a line that was cut off."""
    found: dict[int, list[int]] = {}
    said = of
    with suppress(ValueError, TypeError):
        begin, *lines = file.read_text().splitlines()
        said = json.loads(begin)
        for line in lines:
            number, tokens = json.loads(line)
            found[number] = tokens
    check_same(file, said, of)
    return found


def check_same(file: Path, said: Any, of: Any) -> None:
    """Refuse answers of something else, which may have taken hours: `ValueError`."""
    if said != of:
        raise ValueError(
            f"{file} has answers to other data, or by other options: give the same, or --overwrite "
            "without --resume to begin anew, or write to another folder"
        )
