"""What is said in a conversation: messages of one line or several, and commands, as they are typed.

Three quotation marks begin a message of several lines and end it; a line that ends with a backslash
goes on with the next one. Knows no command but the one that takes several lines.
"""

from __future__ import annotations

import re
import sys
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import Protocol

SIGN, MORE = "> ", ". "  # before what is typed, and before what continues it
BACKSLASH, QUOTES = "\\", '"""'
HELD = "surrogateescape"  # how bytes that are no text stand in it until it is whole
OPENING = re.compile(rf"\s*(/system\s+)?{QUOTES}")


@dataclass(frozen=True)
class Entry:
    """A message or a command."""

    text: str
    quoted: bool = False  # a message, whatever it begins with

    @property
    def is_command(self) -> bool:
        return self.text.startswith("/") and not self.quoted


class Source(Protocol):
    """Where entries come from."""

    def read(self) -> Entry:
        """The next entry; `EOFError` at the end, `KeyboardInterrupt` for Ctrl-C."""

    def confirm(self, question: str) -> bool:
        """Whether the user says yes; never where nobody can be asked."""


def is_open(text: str) -> bool:
    """Whether quotation marks begin the text and none end it."""
    opening = OPENING.match(text)
    return opening is not None and not text[opening.end() :].rstrip().endswith(QUOTES)


def parsed(text: str) -> Entry:
    """What was typed, without its quotation marks."""
    opening = OPENING.match(text)
    if opening is None:
        return Entry(text)
    body = text[opening.end() :].rstrip().removesuffix(QUOTES).strip("\n")
    return Entry(opening[1] + body) if opening[1] else Entry(body, quoted=True)


def means_yes(answer: str) -> bool:
    """Enter alone is a yes."""
    return answer.strip().lower() in ("", "y", "yes")


class Lines:
    """Entries from standard input, line by line. prompted: a user is there, who sees SIGN."""

    def __init__(self, prompted: bool) -> None:
        self._prompted, self._mark = prompted, BOM_UTF8

    def read(self) -> Entry:
        """As of a `Source`; `ValueError` for what is no text."""
        text = self._line(SIGN)
        while text.endswith(BACKSLASH) or is_open(text):
            try:
                more = self._line(MORE)
            except EOFError:  # what there is was meant
                break
            text = f"{text.removesuffix(BACKSLASH) if not is_open(text) else text}\n{more}"
        try:
            return parsed(text.encode(errors=HELD).decode())
        except UnicodeDecodeError as error:
            said = f"the message is not UTF-8 text (byte {error.start})"
            raise ValueError(f"{said}: convert it") from error

    def confirm(self, question: str) -> bool:
        return self._prompted and means_yes(self._line(question))

    def _line(self, sign: str) -> str:
        if self._prompted:
            print(sign, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline().removeprefix(self._mark)
        self._mark = b""  # one stands before the first line alone
        if not line:
            raise EOFError
        return line.decode(errors=HELD).rstrip("\r\n")
