"""The lines of a batch that are not done yet, as many at once as there are places.

Lines that begin alike run beside one another, so that what they share is read once. What became of
a line is told at once, so that whoever writes it down loses nothing that was done. Knows one
engine, and not who writes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.batch import calls
from draftproof.batch.calls import Call, Calls
from draftproof.batch.lines import Input, Line
from draftproof.batch.results import Results
from draftproof.server.refusals import Refused

BUSY = 429  # the status of what may be asked again
AHEAD = 2  # requests that are made, of those that run


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a line; of plain values, so that it can come from another process.

    id, number: of the line. answer: the line of the output, None where there is none yet: then
    wrong says why. stats: of the answer. tokens: of its texts. wrong: a sentence about an error.
    """

    id: str
    number: int
    answer: Mapping[str, Any] | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    wrong: str | None = None


@dataclass(slots=True)
class Run:
    """What one run did.

    wrong: sentences about lines with an error. failed: numbers of lines that no answer was written
    for, and why: they are tried again by the next one.
    """

    began: float = field(default_factory=time.monotonic)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def per_second(self) -> float:
        """Tokens, of texts that have ended."""
        return self.tokens / max(self.seconds, 1e-9)

    def take(self, done: Done, results: Results) -> None:
        """Count it, and write its answer. Raises `ValueError` where it cannot be written."""
        self.tokens += done.tokens
        if done.answer is None:
            self.failed.append((done.number, done.wrong or ""))
            return
        if done.wrong is not None:
            self.wrong.append(done.wrong)
        results.add(done.answer, done.stats)


def left(lines: Sequence[Line], results: Results) -> list[Line]:
    """Those that have no answer yet, in the order in which they are best done."""
    todo = [line for line in lines if line.id not in results.done]
    return sorted(todo, key=lambda line: line.like)


def tell_broken(given: Input, results: Results, run: Run) -> None:
    """Write what is wrong with lines that are no calls."""
    for line in given.lines:
        if line.wrong is not None and line.id not in results.done:
            results.add(calls.broken(line), {"id": line.id, "line": line.number})
            run.wrong.append(line.wrong)


class Batch:
    """Lines on their way to answers, in one engine."""

    def __init__(self, made: Calls) -> None:
        self.calls = made
        self._engine = made.llm.engine
        self._running: dict[int, Call] = {}  # by the keys of its requests
        self._starved: list[Line] = []

    def write(self, lines: Sequence[Line]) -> Iterator[Done]:
        """What becomes of each, as soon as it is known."""
        places = self._engine.scheduler.max_batch
        yield from self._write(lines, AHEAD * places)
        again, self._starved = self._starved, []
        for line in again:  # alone, so that no neighbour has the memory
            yield from self._write([line], 1)
        short = "keys and values take more memory than there is: give it max_tokens"
        starved, self._starved = self._starved, []
        for line in starved:
            yield Done(line.id, line.number, wrong=short)

    def _write(self, lines: Sequence[Line], most: int) -> Iterator[Done]:
        pending = deque(lines)
        while pending or self._running:
            while pending and len(self._running) < most:
                yield from self._begin(pending.popleft())
            for call in self._ended() if self._running else ():
                yield from self._finish(call)

    def _begin(self, line: Line) -> Iterator[Done]:
        try:
            call = self.calls.begin(line)
        except Refused as refused:
            if refused.status == BUSY:  # not the line's doing
                yield Done(line.id, line.number, wrong=refused.message)
            else:
                yield _refused(line, refused)
            return
        self._running |= {request.key: call for request in call.requests}
        for request in call.requests:
            self._engine.add(request)
        if all(request.finished for request in call.requests):  # no token is asked for
            yield from self._finish(call)

    def _ended(self) -> list[Call]:
        """The calls whose last text ended in one step."""
        ended = {}
        for request in self._engine.step():
            call = self._running.get(request.key)
            if call is not None and all(each.finished for each in call.requests):
                ended[call.line.id] = call
        return list(ended.values())

    def _finish(self, call: Call) -> Iterator[Done]:
        """What is told of it, unless it is to be written again."""
        for request in call.requests:
            self._running.pop(request.key, None)
        if call.starved:
            self._starved.append(call.line)
            return
        line = call.line
        tokens = sum(request.stats.tokens for request in call.requests)
        try:
            told = calls.answer(call)
        except Refused as refused:
            if refused.status >= 500:  # not the line's doing
                yield Done(line.id, line.number, tokens=tokens, wrong=refused.message)
            else:
                yield _refused(line, refused, tokens)
            return
        yield Done(line.id, line.number, told, calls.statistics(call), tokens)


def _refused(line: Line, refused: Refused, tokens: int = 0) -> Done:
    stats = {"id": line.id, "line": line.number}
    said = f"line {line.number}: {refused.message}"
    return Done(line.id, line.number, calls.refusal(line, refused), stats, tokens, said)
