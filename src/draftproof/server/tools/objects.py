"""The object of one call, {"name": ..., "arguments": {...}}, read character by character.

Arguments are handed on as they are written, before the object is whole; only their brackets and
strings are looked at. Knows no tools and no templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable

WHITE = " \t\r\n"
INNER = frozenset('{}[],:"+-.0123456789eEtrufalsn' + WHITE)  # of JSON, outside of its strings
PAIRS = {"}": "{", "]": "["}
GIVEN = ("arguments", "parameters")
KEYS = ("name", *GIVEN, "id", "type")  # an object with any other is no call


class Broken(Exception):
    """The text is no object of a call."""


class Value:
    """A JSON value, as far as it takes to know where it ends."""

    def __init__(self, first: str) -> None:
        self.first, self.done = first, False
        self._open: list[str] = []
        self._string = self._escaped = False
        self.push(first)

    @property
    def scalar(self) -> bool:
        """Whether it ends before the character behind it."""
        return self.first not in '{["'

    def push(self, character: str) -> None:
        """Raises `Broken`."""
        if self._string:
            if self._escaped or character == "\\":
                self._escaped = not self._escaped
            elif character == '"':
                self._string = False
                self.done = not self._open
            return
        if character not in INNER:
            raise Broken
        if character == '"':
            self._string = True
        elif character in "{[":
            self._open.append(character)
        elif character in PAIRS:
            if not self._open or self._open.pop() != PAIRS[character]:
                raise Broken
            self.done = not self._open


class CallObject:
    """name: None until it is known. done: behind its last character.

    bare: the arguments alone are read, whose name stood elsewhere.
    """

    def __init__(self, bare: bool = False) -> None:
        self.name: str | None = None
        self.done = self.given = False  # given: arguments have begun
        self._bare, self._key = bare, "arguments" if bare else ""
        self._fresh: list[str] = []
        self._text: list[str] = []
        self._value: Value | None = None
        self._step: Callable[[str], None] = self._begin if bare else self._open

    def push(self, character: str) -> None:
        """The next one. Raises `Broken`; all before it stays."""
        self._step(character)

    def take(self) -> str:
        """Arguments that are new since the last call."""
        fresh, self._fresh = "".join(self._fresh), []
        return fresh

    def _open(self, character: str) -> None:
        self._go({"{": self._first}, character)

    def _first(self, character: str) -> None:
        self._go({'"': self._named, "}": self._end}, character)

    def _other(self, character: str) -> None:
        self._go({'"': self._named}, character)

    def _next(self, character: str) -> None:
        self._go({",": self._other, "}": self._end}, character)

    def _colon(self, character: str) -> None:
        self._go({":": self._begin}, character)

    def _go(self, ways: dict[str, Callable[[str], None]], character: str) -> None:
        if character in WHITE:
            return
        if character not in ways:
            raise Broken
        self._step = ways[character]
        if self._step == self._end:
            self.done = True
        elif self._step == self._named:
            self._value, self._text = Value('"'), ['"']

    def _end(self, character: str) -> None:
        raise Broken

    def _named(self, character: str) -> None:
        """Within a key."""
        if (key := self._string(character)) is not None:
            if key not in KEYS or (key == "name" and self.name is not None):
                raise Broken
            if key in GIVEN and self.given:
                raise Broken
            self._key, self._step = key, self._colon

    def _begin(self, character: str) -> None:
        """Before a value."""
        if character in WHITE:
            return
        if character != {"name": '"', **dict.fromkeys(GIVEN, "{")}.get(self._key, character):
            raise Broken
        self._value, self._text, self._step = Value(character), [character], self._within
        if self._key in GIVEN:
            self.given = True
            self._fresh.append(character)

    def _within(self, character: str) -> None:
        """Within a value."""
        assert self._value is not None
        if self._value.scalar:
            if character in ",}" or character in WHITE:
                self._step = self._next
                return self._next(character)
            return self._value.push(character)
        if self._key == "name":
            if (name := self._string(character)) is not None:
                self.name, self._step = name, self._next
            return None
        self._value.push(character)
        if self._key in GIVEN:
            self._fresh.append(character)
        if self._value.done:
            self._step = self._end if self._bare else self._next
            self.done = self._bare
        return None

    def _string(self, character: str) -> str | None:
        """The string that ends with this character."""
        assert self._value is not None
        self._value.push(character)
        self._text.append(character)
        if not self._value.done:
            return None
        try:
            return str(json.loads("".join(self._text), strict=False))
        except ValueError:
            raise Broken from None
