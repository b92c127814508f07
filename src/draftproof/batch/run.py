"""The lines of a batch that are not done yet, as many at once as there are places.

Lines that begin alike run beside one another, so that what they share is read once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from draftproof.batch import calls
from draftproof.batch.calls import Call, Calls
from draftproof.batch.lines import Input, Line
from draftproof.batch.results import Results
from draftproof.server.refusals import Refused

AHEAD = 2  # requests that are made, of those that run


@dataclass(slots=True)
class Run:
    """What one run did.

    wrong: sentences about lines with an error. failed: lines that no answer was written for, and
    why: they are tried again by the next one.
    """

    began: float = field(default_factory=time.monotonic)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[tuple[Line, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def per_second(self) -> float:
        """Tokens, of texts that have ended."""
        return self.tokens / max(self.seconds, 1e-9)


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
    """Lines on their way to `results`.

    told: called whenever an answer was written, with `run`, which counts.
    """

    def __init__(
        self, made: Calls, results: Results, told: Callable[[Run], None], run: Run
    ) -> None:
        self.calls, self.results, self.told, self.run = made, results, told, run
        self._engine = made.llm.engine
        run.began = time.monotonic()  # without what loading took
        self._running: dict[int, Call] = {}  # by the keys of its requests
        self._starved: list[Line] = []

    def write(self, lines: Sequence[Line]) -> None:
        """All of them. Raises `ValueError` where nothing more can be written."""
        places = self._engine.scheduler.max_batch
        self._write(lines, AHEAD * places)
        again, self._starved = self._starved, []
        for line in again:  # alone, so that no neighbour has the memory
            self._write([line], 1)
        for line in self._starved:
            short = "keys and values take more memory than there is: give it max_tokens"
            self.run.failed.append((line, short))

    def _write(self, lines: Sequence[Line], most: int) -> None:
        pending = deque(lines)
        while pending or self._running:
            while pending and len(self._running) < most:
                self._begin(pending.popleft())
            for call in self._ended() if self._running else ():
                self._finish(call)

    def _begin(self, line: Line) -> None:
        try:
            call = self.calls.begin(line)
        except Refused as refused:
            self._refuse(line, refused)
            return
        self._running |= {request.key: call for request in call.requests}
        for request in call.requests:
            self._engine.add(request)
        if all(request.finished for request in call.requests):  # no token is asked for
            self._finish(call)

    def _ended(self) -> Iterator[Call]:
        """The calls whose last text ended in one step."""
        for request in self._engine.step():
            call = self._running.get(request.key)
            if call is not None and all(each.finished for each in call.requests):
                yield call

    def _finish(self, call: Call) -> None:
        for request in call.requests:
            self._running.pop(request.key, None)
        self.run.tokens += sum(request.stats.tokens for request in call.requests)
        if call.starved:
            self._starved.append(call.line)
            return
        try:
            told = calls.answer(call)
        except Refused as refused:
            if refused.status >= 500:  # not the line's doing
                self.run.failed.append((call.line, refused.message))
                return
            self._refuse(call.line, refused)
            return
        self.results.add(told, calls.statistics(call))
        self.told(self.run)

    def _refuse(self, line: Line, refused: Refused) -> None:
        self.run.wrong.append(f"line {line.number}: {refused.message}")
        self.results.add(calls.refusal(line, refused), {"id": line.id, "line": line.number})
        self.told(self.run)
