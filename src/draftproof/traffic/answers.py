"""One answer: what was asked, what came, and when.

Events are read as they come; every time is handed in, so nothing here knows a clock. Tokens are
those that the server counts (`usage`): a chunk may hold any number of them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, TypeGuard

UNFINISHED = ("abort", "error")  # reasons of an end that is none
TEXTS = ("reasoning_content", "reasoning", "content")  # of a chat's delta, in the order shown
MOST = 1 << 53  # tokens: what is counted is divided by seconds


class Failed(Exception):
    """An answer that did not come. kind: in a word or two, for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Question:
    """A call to be made: the body of it, without what all calls share."""

    prompt: str  # its name
    turn: int
    path: str
    body: dict[str, Any]

    def key(self, shared: dict[str, Any]) -> str:
        """What the text of the answer hangs on, wherever and among whomever it is asked."""
        said = json.dumps(self.body | shared, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Answer:
    """A call and what came of it.

    Times are seconds of one clock, which begins anywhere. due: when the call ought to be made;
    sent: when it was; first, last: when text came; gap: the longest time between two pieces of it.
    """

    question: Question
    asked: str  # the question's key
    due: float
    sent: float
    first: float | None = None
    last: float | None = None
    ended: float = 0.0
    gap: float | None = None
    text: str = ""
    reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None  # the kind of failure
    error: str | None = None  # in a sentence

    @property
    def tokens(self) -> int:
        return _count(self.usage, "completion_tokens")

    @property
    def read(self) -> int:
        """Tokens of the prompt."""
        return _count(self.usage, "prompt_tokens")

    @property
    def cached(self) -> int:
        """Tokens of the prompt that the server had read before."""
        return _count(self.usage.get("prompt_tokens_details"), "cached_tokens")

    @property
    def first_token_s(self) -> float | None:
        """From when the call was due: what the client waited for is counted."""
        return None if self.first is None else self.first - self.due

    @property
    def per_token_s(self) -> float | None:
        """Between tokens, after the first piece. None where all came in one piece."""
        if self.first is None or self.last is None or self.gap is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def whole_s(self) -> float:
        return self.ended - self.due

    def piece(self, text: str, at: float) -> None:
        """New text."""
        if self.last is None:
            self.first = at
        else:
            self.gap = max(self.gap or 0.0, at - self.last)
        self.last = at
        self.text += text


class Events:
    """Server-sent events of an answer, in whatever parts they come."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.done, self._rest = answer, False, b""

    def feed(self, raw: bytes, at: float) -> None:
        """The next bytes, and when they came. Raises `Failed`."""
        *lines, self._rest = (self._rest + raw).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at)

    def end(self) -> None:
        """There are no more bytes. Raises `Failed` where something is missing."""
        if not self.done or self.answer.reason is None:
            raise Failed("broken off", "the stream ended before the answer did")
        if self.answer.reason in UNFINISHED:
            raise Failed(self.answer.reason, f"the server ended with {self.answer.reason}")
        if not _is_count(self.answer.usage.get("completion_tokens")):
            raise Failed("no usage", "the server did not count its tokens in `usage`")

    def _event(self, data: bytes, at: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(data)
            error, usage = chunk.get("error"), chunk.get("usage")
            for choice in chunk.get("choices") or ():
                self._choice(choice, at)
        except (ValueError, AttributeError, TypeError, RecursionError) as fault:
            said = data[:60].decode(errors="replace")
            raise Failed("not a chunk", f"the server sent {said!r}") from fault
        if error:
            raise Failed("error", told(error))
        if isinstance(usage, dict):
            self.answer.usage = usage

    def _choice(self, choice: dict[str, Any], at: float) -> None:
        delta = choice.get("delta") or {}
        text = "".join(delta.get(name) or "" for name in TEXTS) + (choice.get("text") or "")
        if text:
            self.answer.piece(text, at)
        self.answer.reason = choice.get("finish_reason") or self.answer.reason


def _count(counts: Any, name: str) -> int:
    """0 where a server does not tell."""
    count = counts.get(name) if isinstance(counts, dict) else None
    return count if _is_count(count) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MOST


def told(error: Any) -> str:
    """The sentence of an error body, as OpenAI or others write it."""
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or error)[:300]
