"""A model's text, taken apart into content and calls while it comes.

However the text is cut, the parts are the same: nothing is told before it is certain, and what
turns out to be no call is content as it stands. Knows a form, not templates or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from draftproof.server.tools.forms import ARGUMENTS, CALL_ID, Form
from draftproof.server.tools.objects import WHITE, Broken, CallObject

LONGEST = 256  # characters in which a name that stands by itself has to end


class Part(NamedTuple):
    """kind: content, reasoning, name (a call begins) or arguments (of the call that has begun
    last); call: which one, from 0."""

    kind: str
    text: str
    call: int = -1


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one."""
    made: list[Part] = []
    for part in parts:
        if made and part.kind == made[-1].kind != "name" and part.call == made[-1].call:
            made[-1] = made[-1]._replace(text=made[-1].text + part.text)
        elif part.text or part.kind == "name":
            made.append(part)
    return made


def begun(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    most = min(len(text), len(marker) - 1)
    return next((size for size in range(most, 0, -1) if marker.startswith(text[-size:])), 0)


class Calls:
    """names: of the tools; what names another one is no call. White space around calls is dropped.

    count: calls so far.
    """

    def __init__(self, form: Form, names: Collection[str]) -> None:
        self.form, self.names, self.count = form, names, 0
        self._rest = ""  # not looked at yet
        self._raw = ""  # looked at, and content unless it becomes a call
        self._space = ""  # content so far ends with it
        self._parts: list[Part] = []
        self._object = CallObject()
        self._begun = self._listed = False
        self._step: Callable[[bool], bool] = self._first if form.bare else self._free

    def feed(self, text: str, last: bool = False) -> list[Part]:
        """What is certain now; last: nothing comes behind it."""
        self._rest += text
        while self._step(last):
            pass
        if last and not self.count:
            self._parts.append(Part("content", self._space))
        parts, self._parts = self._parts, []
        return joined(parts)

    # Each step looks at the rest and says whether there is more to do with what is there.

    def _free(self, last: bool) -> bool:
        """In content."""
        marker, rest = self.form.begin, self._rest
        at = rest.find(marker) if marker else -1
        if at >= 0:
            self._say(rest[:at])
            self._raw, self._rest = marker, rest[at + len(marker) :]
            return self._to(self._open)
        held = 0 if last else begun(rest, marker)
        self._say(rest[: len(rest) - held])
        self._rest = rest[len(rest) - held :]
        return False

    def _first(self, last: bool) -> bool:
        """At the beginning, where a call may stand without a marker."""
        character = self._character()
        if not character:
            return self._text() if last and self._raw else False
        opens = character == "{" or (character == "[" and self.form.lists)
        return self._to(self._open) if opens else self._text()

    def _open(self, last: bool) -> bool:
        """Where calls begin."""
        character = self._character()
        if not character:
            return self._text() if last else False
        if character == "{":
            return self._new()
        if character == "[" and self.form.lists and not self._listed:
            self._eat(1)
            self._listed = True
            return True
        return self._to(self._named) if self.form.named and not self._listed else self._text()

    def _named(self, last: bool) -> bool:
        """At a name that stands before its arguments."""
        found = [at for mark in (ARGUMENTS, "{") if (at := self._rest.find(mark)) >= 0]
        at = min(found, default=-1)
        if at < 0 and len(self._rest) < LONGEST + len(ARGUMENTS) and not last:
            return False
        name = self._rest[:at].partition(CALL_ID)[0].strip() if 0 <= at <= LONGEST else ""
        if name not in self.names:
            return self._text()
        self._rest = self._rest[at:].removeprefix(ARGUMENTS)
        self._new(bare=True)
        self._call(name)
        return True

    def _in_object(self, last: bool) -> bool:
        made = self._object
        for at, character in enumerate(self._rest):
            try:
                made.push(character)
            except Broken:
                self._rest = self._rest[at:]
                self._told()
                return self._to(self._ruined) if self._begun else self._text()
            if not self._begun:
                self._raw += character
                if made.name is not None:
                    if made.name not in self.names:
                        self._rest = self._rest[at + 1 :]
                        return self._text()
                    self._call(made.name)
            if made.done:
                self._rest = self._rest[at + 1 :]
                if not self._begun:
                    return self._text()
                self._told()
                if not made.given:
                    self._parts.append(Part("arguments", "{}", self.count - 1))
                return self._to(self._behind)
        self._rest = ""
        self._told()
        return self._text() if last and not self._begun else False

    def _ruined(self, last: bool) -> bool:
        """Behind what is no JSON any more: up to the end of the call it is what was given."""
        end, rest = self.form.end, self._rest
        at = rest.find(end) if end else -1
        held = 0 if last else begun(rest, end)
        upto = at if at >= 0 else len(rest) - held
        self._parts.append(Part("arguments", rest[:upto], self.count - 1))
        self._rest = rest[upto:]
        if at < 0:
            return False
        self._rest = self._rest[len(end) :]
        return self._to(self._free)

    def _behind(self, last: bool) -> bool:
        """Behind a call."""
        character, end = self._character(), self.form.end
        if not character:
            return False
        if self._listed:
            if character == ",":
                self._eat(1)
                return self._to(self._item)
            if character == "]":
                return self._closed(1)
        elif end and self._rest.startswith(end):
            return self._closed(len(end))
        elif end.startswith(self._rest) and not last:
            return False
        elif character == self.form.separator or (self.form.bare and character == "{"):
            self._eat(character != "{")
            return self._to(self._open)
        return self._text()

    def _item(self, last: bool) -> bool:
        """Behind a comma between calls."""
        character = self._character()
        if not character:
            return self._text() if last else False
        return self._new() if character == "{" else self._text()

    def _to(self, step: Callable[[bool], bool]) -> bool:
        self._step = step
        return True

    def _new(self, bare: bool = False) -> bool:
        self._object, self._begun = CallObject(bare), False
        return self._to(self._in_object)

    def _closed(self, size: int) -> bool:
        """Behind the end of calls, which has so many characters."""
        self._rest, self._raw, self._listed = self._rest[size:], "", False
        return self._to(self._free)

    def _text(self) -> bool:
        """What was looked at is content."""
        self._say(self._raw)
        self._raw, self._listed = "", False
        return self._to(self._free)

    def _character(self) -> str:
        """The next one that is no white space; "": there is none yet."""
        self._eat(len(self._rest) - len(self._rest.lstrip(WHITE)))
        return self._rest[:1]

    def _eat(self, size: int) -> None:
        self._raw, self._rest = self._raw + self._rest[:size], self._rest[size:]

    def _call(self, name: str) -> None:
        """A call begins, which is certain now."""
        self._parts.append(Part("name", name, self.count))
        self.count, self._begun = self.count + 1, True
        self._raw = self._space = ""

    def _told(self) -> None:
        """Hand on what is new of the arguments."""
        if self._begun:
            self._parts.append(Part("arguments", self._object.take(), self.count - 1))

    def _say(self, text: str) -> None:
        """Content, but for white space at its end."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._parts.append(Part("content", shown))
