"""Tokens become text as they come, up to a stop string.

The text of an output is what its tokens add to the text of the prompt: decode(prompt + output)
without decode(prompt), where of the prompt only the last tokens are looked at. It is made by one
incremental decoder, so that pieces and whole agree however the tokens were handed over. Text that
may still change (half a character, the beginning of a stop string) is held back from streaming.
Does not know requests, or what a model computes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from draftproof.detokenizer import CHUNK, Detokenizer


class TextStream:
    """The text of an output, growing; cut before the stop string that is complete first.

    One thread may push while another takes. If the tokenizer's decode raises, the text stays what
    it was before that token, and the error is raised once: by `push` where there are stop strings,
    else by `flush`, so that it does not depend on who takes when. `take` never raises.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._lock = threading.Lock()
        self._pending: list[int] = []
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._tail = ""  # the end of the text, in which a stop string may have begun
        self._stops = True
        self._stopped = self._done = False
        self._fault: Exception | None = None
        self._taken: list[str] = []
        self._waiting: list[str] = []  # behind it, not taken yet

    @property
    def text(self) -> str:
        """What is complete; all there is after `flush`."""
        with self._lock:
            return "".join(self._taken + self._waiting)

    def push(self, tokens: Sequence[int], stops: bool = True) -> None:
        """Append tokens; decoded at once only where a stop string may end the output.

        stops: whether stop strings count in the text of these tokens (not before `min_tokens`).
        """
        with self._lock:
            if not self._done:
                self._pending += tokens
                self._stops = stops
            if self._stop:
                self._advance()
                self._raise()

    def flush(self) -> None:
        """The output has ended: emit what waited, as it is; that too may hold a stop string."""
        with self._lock:
            self._advance()
            if not self._done:
                try:
                    self._emit(self._detokenizer.finish())
                except Exception as error:
                    self._fault = error
                self._done = True
            self._raise()

    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._stopped

    def take(self) -> str:
        """Text that is new since the last call and can no longer change."""
        with self._lock:
            self._advance()
            fresh = "".join(self._waiting)
            held = 0 if self._done else self._held()
            end = len(fresh) - held
            self._taken.append(fresh[:end])
            self._waiting = [fresh[end:]]
            return fresh[:end]

    def _advance(self) -> None:
        """Emit what is complete; the same for any number of tokens at once."""
        at = singly = 0  # tokens done; further ones to be done one by one
        try:
            while at < len(self._pending) and not self._done:
                tokens = self._pending[at : at + (1 if singly else CHUNK)]
                fresh = self._decoded(tokens)
                if fresh is None:
                    singly = len(tokens)
                    continue
                at, singly = at + len(tokens), max(singly - 1, 0)
                self._emit(fresh)
        except Exception as error:
            self._fault, self._done = error, True
        finally:
            del self._pending[:at]

    def _decoded(self, tokens: list[int]) -> str | None:
        try:
            return self._detokenizer.feed(tokens)
        except Exception:
            if len(tokens) == 1:
                raise
            return None  # one by one, the text before the faulty token is had

    def _emit(self, fresh: str) -> None:
        """Append text; cut it where the first stop string begins."""
        if fresh:
            self._waiting.append(fresh)
        if not self._stop or not fresh:
            return
        tail = self._tail + fresh
        found = [(at + len(stop), at) for stop in self._stop if (at := tail.find(stop)) >= 0]
        if not self._stops:
            self._tail = ""
        elif found:
            whole, (_, at) = "".join(self._waiting), min(found)
            self._waiting = [whole[: len(whole) - len(tail) + at]]
            self._stopped = self._done = True
        else:
            self._tail = tail[max(len(tail) + 1 - self._longest, 0) :]

    def _held(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        for size in range(len(self._tail), 0, -1):
            if any(stop.startswith(self._tail[-size:]) for stop in self._stop):
                return size
        return 0

    def _raise(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
