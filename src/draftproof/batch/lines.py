"""The input of a batch: its lines, what is wrong with some, and in which order they are done.

Knows the four fields of a line; a body is read where it is answered. Knows no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import from_json

CHAT, TEXT = URLS = ("/v1/chat/completions", "/v1/completions")
FIELDS = ("custom_id", "method", "url", "body")
ALIKE = 1 << 12  # characters by which lines are sorted
EXAMPLE = '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {...}}'


@dataclass(frozen=True, slots=True)
class Line:
    """A call, or the sentence that says why it is none.

    number: of the line, from 1. id: of its answer. seed: of its text, unless its body has one.
    """

    number: int
    id: str
    custom_id: str | None
    seed: int
    url: str
    body: dict[str, Any]
    wrong: str | None = None

    @property
    def like(self) -> str:
        """Lines that begin alike stand beside one another when they are sorted by this."""
        asked = self.body.get("messages" if self.url == CHAT else "prompt")
        return f"{self.url} {json.dumps(asked)[:ALIKE]}"


class Input:
    """A file of lines, read whole. Raises `ValueError` for one that cannot be read, or is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ValueError(
                f"cannot read the batch {path}: {error.strerror}; give a file of lines, {EXAMPLE}"
            ) from error
        self.digest = hashlib.sha256(raw).hexdigest()
        self.lines = list(self._read(raw.removeprefix(b"\xef\xbb\xbf")))
        if not self.lines:
            raise ValueError(f"the batch {path} has no line: a line is {EXAMPLE}")

    @cached_property
    def by_id(self) -> dict[str, Line]:
        return {line.id: line for line in self.lines}

    @property
    def model(self) -> str | None:
        """The model that the first line with a name of one asks for."""
        named = (line.body.get("model") for line in self.lines if line.wrong is None)
        return next((name for name in named if isinstance(name, str) and name), None)

    def _read(self, raw: bytes) -> Iterator[Line]:
        seen: dict[str, int] = {}  # custom_id -> the line that has it
        for number, text in enumerate(raw.split(b"\n"), 1):
            if not text.strip():
                continue
            given, wrong = _parsed(text)
            name: Any = given.get("custom_id")
            if wrong is None and name in seen:
                wrong = f"custom_id {name[:80]!r} is that of line {seen[name]}: give it its own"
            if wrong is None:
                seen[name] = number
            yield Line(
                number,
                "batch_req_" + self._hash(str(number))[:24],
                name if isinstance(name, str) else None,
                int(self._hash(f"seed {name}")[:16], 16) >> 1,
                given.get("url", "") if wrong is None else "",
                given.get("body", {}) if wrong is None else {},
                None if wrong is None else f"line {number}: {wrong}",
            )

    def _hash(self, what: str) -> str:
        return hashlib.sha256(f"{self.digest} {what}".encode()).hexdigest()


def _parsed(text: bytes) -> tuple[dict[str, Any], str | None]:
    """What a line holds, and what is wrong with it."""
    try:
        given = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        return {}, f"it is no JSON ({error})"
    if not isinstance(given, dict):
        return {}, f"it is no JSON object: a line is {EXAMPLE}"
    name = given.get("custom_id")
    if not (isinstance(name, str) and name):
        return given, "it has no custom_id: give it a text that no other line has"
    if unknown := [field for field in given if field not in FIELDS]:
        return given, f"{unknown[0][:80]!r} is unknown: a line has {', '.join(FIELDS)}"
    if given.get("method") != "POST":
        return given, f"method is {str(given.get('method'))[:80]!r}: a batch has POST alone"
    if given.get("url") not in URLS:
        return given, f"url is {str(given.get('url'))[:80]!r}: a batch has {' and '.join(URLS)}"
    if not isinstance(given.get("body"), dict):
        return given, "it has no body: that is an object with the fields of the call"
    return given, None
