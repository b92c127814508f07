"""Reads on through the bytes of a GGUF file, and never beyond its end.

Knows how numbers, texts and lists are packed, and not what they are for.
"""

from __future__ import annotations

import codecs
import mmap
import struct
from typing import Any, NamedTuple

import numpy as np

SCALARS = {  # of a field, by number: how it is packed
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9
PIECE = 1 << 16  # bytes of a text that are looked at at once


class Damaged(Exception):
    """What is wrong with a file, in words that follow its name."""


class Cursor:
    """Reads on through the bytes of a file, and never beyond its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise Damaged("it ends too early: fetch it again")
        self.at += size
        return self.data[self.at - size : self.at]

    def one(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, size: int, what: str) -> int:
        """A number of things that take `size` bytes each at least."""
        found: int = self.one("<Q")
        if found * size > self.left:
            raise Damaged(f"it says that it has {found} {what}, for which it is too small")
        return found

    def text(self) -> str:
        return _decoded(self.take(self.one("<Q")))

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.one(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array(self.one("<I"))
        raise Damaged(f"a field is of type {kind}, which no GGUF file has: it is damaged")

    def _array(self, kind: int) -> list[Any] | Texts:
        if kind == STRING:
            return self._texts(self.count(8, "texts"))
        if kind not in SCALARS:
            raise Damaged(f"a list is of type {kind}, which no model has: it is damaged")
        form = SCALARS[kind]
        size = struct.calcsize(form)
        count = self.count(size, "values")
        values: list[Any] = np.frombuffer(self.take(count * size), form).tolist()
        return values

    def _texts(self, count: int) -> Texts:
        begin = self.at
        self.at = _walk(self.data, begin, count, None)
        return Texts(self.data, begin, count)


class Texts(NamedTuple):
    """A list of texts that lie in a file: vocabularies are made strings only for who asks."""

    data: mmap.mmap
    at: int
    length: int

    def read(self) -> list[str]:
        """Raises `Damaged` for what is no text."""
        found: list[str] = []
        _walk(self.data, self.at, self.length, found)
        return found


def _walk(data: mmap.mmap, at: int, count: int, into: list[str] | None) -> int:
    """Over so many texts, which are appended where that is asked for; returns where they end."""
    end, length = len(data), struct.Struct("<Q").unpack_from
    try:
        for _ in range(count):
            begin = at + 8
            at = begin + length(data, at)[0]
            if at > end:
                raise Damaged("a text in it is longer than the file is")
            if into is not None:
                into.append(_decoded(data[begin:at]))
    except struct.error:
        raise Damaged("it ends too early: fetch it again") from None
    return at


def _decoded(text: bytes) -> str:
    try:
        if len(text) > PIECE:  # what is no text is refused before it takes four times its bytes
            pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
            for _ in codecs.iterdecode(pieces, "utf-8"):
                pass
        return text.decode()
    except UnicodeDecodeError:
        raise Damaged("a name or text in it is not UTF-8: it is damaged") from None
