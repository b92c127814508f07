"""Files of training data, line by line, or as the text or list that they are. Knows no fields."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Told = Callable[[int], None]  # how many bytes of the file, as it lies, are read


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """What is in it, and the file as it lies."""
    try:
        with path.open("rb") as raw:
            if path.suffix != ".gz":
                yield raw, raw
                return
            with gzip.open(raw) as file:
                yield file, raw  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {path}: {reason}") from error


def ending(path: Path) -> str:
    """Of its name, without that of a gzipped file."""
    return Path(path.name.removesuffix(".gz")).suffix


def text_of(path: Path) -> str | None:
    """None if the file is not text. Raises `ValueError` where it cannot be read."""
    try:
        with _opened(path) as (file, _):
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def listed(text: str, fields: Collection[str]) -> list[Any] | None:
    """The entries of a JSON list, or of JSON lines under that name; None for any other JSON.

    fields: of which the first entry has one at least; none: whatever it has.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        entries = json.loads(text if lines[:1] and lines[0].lstrip()[0] == "[" else _list(lines))
    except (ValueError, RecursionError):
        return None
    first = entries[0] if isinstance(entries, list) and entries else None
    known = isinstance(first, dict) and (not fields or first.keys() & fields)
    return entries if known else None


def _list(lines: Sequence[str]) -> str:
    return f"[{','.join(lines)}]"


def lines_of(path: Path, told: Told) -> Iterator[tuple[str, Any]]:
    """(where, what) of every line that is not blank. Raises `ValueError` naming file and line."""
    with _opened(path) as (file, raw):
        for number, line in enumerate(file, 1):
            told(raw.tell())
            where = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig")
                if text.strip():
                    yield where, json.loads(text)
            except UnicodeDecodeError as error:
                said = f"{where} is not UTF-8 text (byte {error.start})"
                raise ValueError(f"{said}: convert the file") from error
            except json.JSONDecodeError as error:
                way = "give an object in each line"
                raise ValueError(f"{where} is not JSON: {error.msg}; {way}") from error
            except RecursionError as error:
                raise ValueError(f"{where} nests too deep: leave it out") from error
