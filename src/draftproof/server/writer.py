"""The thread that owns the engine: it loads the model, takes requests in, steps, tells the loop.

Requests come and go through one queue, and each step wakes the loop once. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.llm import LLM
from draftproof.request import Request

logger = logging.getLogger("draftproof.server")


@dataclass(frozen=True, slots=True)
class Moved:
    """What a step did: requests that wrote or ended, with whether they have; its pass's cost, 0
    where there was none."""

    requests: Sequence[tuple[Request, bool]]
    seconds: float
    rows: int
    foretold: float  # seconds


class Writer:
    """Steps an engine on a thread of its own, for as long as there is something to write.

    open: makes the LLM, on that thread. loaded, moved and ended are called on the loop: once it is
    made, after each step, and when the thread is at its end, with what it failed with, if it did.
    """

    def __init__(
        self,
        open: Callable[[], LLM],
        loop: asyncio.AbstractEventLoop,
        *,
        loaded: Callable[[LLM], None],
        moved: Callable[[Moved], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._open, self._loop = open, loop
        self._loaded, self._moved, self._ended = loaded, moved, ended
        self._inbox: queue.SimpleQueue[Callable[[LLM], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="draftproof engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, requests: Sequence[Request]) -> None:
        """Let them run as soon as there are places."""

        def take(llm: LLM) -> None:
            for request in requests:
                llm.engine.add(request)

        self._inbox.put(take)

    def abort(self, requests: Sequence[Request]) -> None:
        """End them before the next step."""

        def drop(llm: LLM) -> None:
            for request in requests:
                llm.engine.abort(request)

        self._inbox.put(drop)

    def stop(self) -> None:
        """End everything, and the thread."""
        self._inbox.put(None)

    def join(self, seconds: float) -> bool:
        """Whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        fault: BaseException | None = None
        try:
            with self._open() as llm:
                self._tell(self._loaded, llm)
                while self._take(llm):
                    self._step(llm)
        except BaseException as error:  # of loading, or a defect: whoever serves has to know
            fault = error
        self._tell(self._ended, fault)

    def _take(self, llm: LLM) -> bool:
        """What has come in; waits for it where there is nothing to write. False: the end."""
        scheduler = llm.engine.scheduler
        idle = not (scheduler.running or scheduler.waiting)
        while idle or not self._inbox.empty():
            idle, call = False, self._inbox.get()
            if call is None:
                return False
            call(llm)
        return True

    def _step(self, llm: LLM) -> None:
        engine = llm.engine
        costs = engine.drafts.costs
        before = costs.passes
        try:
            moved = engine.step()
        except Exception as error:  # a defect of ours; what ran is lost, what comes is not
            logger.exception("a step failed")
            moved = [*engine.scheduler.running, *engine.scheduler.waiting]
            for request in moved:  # the next step releases them
                request.fail(error)
        ran = costs.passes > before
        if moved or ran:
            each = [(request, request.finished) for request in moved]
            seconds, rows = engine.drafts.cost if ran else (0.0, 0)
            foretold = engine.drafts.foretold if ran else 0.0
            self._tell(self._moved, Moved(each, seconds, rows, foretold))

    def _tell(self, call: Callable[[Any], None], what: Any) -> None:
        if not self._loop.is_closed():  # by a second signal, which waits for nobody
            self._loop.call_soon_threadsafe(call, what)
