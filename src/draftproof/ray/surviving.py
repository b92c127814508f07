"""A stream goes on at another engine when its own is lost, token for token. Knows no Ray.

What one engine told (tokens, which choices ended, the head with seeds and fingerprint) is given to
the next one. Where that would write something else it refuses, and the stream ends with its
sentence.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from draftproof.ray.engine import Answer
from draftproof.server.chunks import DONE
from draftproof.server.refusals import Refused
from draftproof.server.responses.output import broken

logger = logging.getLogger("draftproof.server")
TRIES = 6  # engines in a row that were lost before anything more was written
PATIENCE = 60.0  # seconds that others may have too much to do to let a stream go on
SOONEST, LATEST = 0.05, 5.0  # seconds until the next try, which double
ELSEWHERE = b": goes on at another engine\n\n"  # a comment, which clients skip
AGAIN = (429, 503)  # refusals of an engine that has too much to do, or is about to end

T = TypeVar("T")


class Lost(Exception):
    """An engine is gone, or cannot be reached."""


class Engines(Protocol):
    """All replicas, as a front sees them. key: calls with the same one go to the same replica.

    Raise `Lost`, or `Refused` where none takes any more.
    """

    def stream(self, call: Mapping[str, Any], key: str) -> AsyncIterator[Any]:
        """The parts of `Engine.stream`; closing it ends what is written."""

    async def ask(self, call: Mapping[str, Any], key: str) -> Answer | None:
        """As `Engine.ask`; cancelling it ends what is written."""

    async def every(self, name: str) -> list[Any]:
        """What a method without arguments returns at each replica."""


class Surviving:
    """One stream: `begin`, then `parts`.

    paused: told of each time that it went on elsewhere, with seconds without news.
    """

    def __init__(
        self,
        engines: Engines,
        call: Mapping[str, Any],
        key: str,
        paused: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._engines, self._call, self._key, self._paused = engines, call, key, paused
        self._source: Any = None
        self._head: dict[str, Any] = {}
        self._written: list[list[int]] = []
        self._ended: dict[int, str | None] = {}
        self._events = 0  # that were told

    async def begin(self) -> None:
        """Until an engine writes it. Raises `Refused`."""
        await tried(self._first)

    async def _first(self) -> None:
        await self.close()
        self._source = self._engines.stream(self._call, self._key)
        self._head = await self._headed()
        self._written = [list(each) for each in self._head["written"]]

    async def parts(self) -> AsyncIterator[bytes]:
        """All that the client is told: as of one engine, whichever are lost on the way."""
        failed = 0
        while True:
            try:
                async for part in self._source:
                    failed = 0
                    yield self._told(part)
                    if part[3]:
                        return
                raise Lost("the stream ended before the text did")
            except Lost as lost:
                failed, since = failed + 1, time.monotonic()
                if failed > TRIES:
                    yield self.ending(gone(lost))
                    return
            try:
                await self._go_on(failed)
            except Refused as refused:
                yield self.ending(refused)
                return
            self._paused(time.monotonic() - since)
            yield ELSEWHERE

    def ending(self, refused: Refused) -> bytes:
        """The end of a stream that cannot go on."""
        if self._call.get("items"):
            return broken(refused, self._events)
        return b"data: " + refused.body + b"\n\n" + DONE

    async def close(self) -> None:
        """End what is written."""
        if self._source is not None:
            await self._source.aclose()

    def _told(self, part: Any) -> bytes:
        body: bytes
        body, tokens, ends, _ = part
        for index, ids in tokens:
            self._written[index] += ids
        self._ended |= ends
        self._events += body.count(b"\n\n")
        return body

    async def _go_on(self, failed: int) -> None:
        """At another engine. Raises `Refused`."""
        call = dict(self._call)
        if self._events:
            call["goes_on"] = {
                "head": self._head,
                "written": self._written,
                "ended": self._ended,
                "events": self._events,
            }

        async def again() -> None:
            await self.close()
            self._source = self._engines.stream(call, self._key)
            head = await self._headed()
            if not self._events:
                self._head = head
                self._written = [list(each) for each in head["written"]]

        logger.warning(
            "%s goes on at another engine behind %d tokens",
            call.get("id", "-"),
            sum(map(len, self._written)),
        )
        await asyncio.sleep(_pause(failed))
        await tried(again, refusals=AGAIN)

    async def _headed(self) -> dict[str, Any]:
        """What an engine says first. Raises `Refused` and `Lost`."""
        async for part in self._source:
            if (refused := part.get("refused")) is not None:
                status, message, param, code = refused
                raise Refused(
                    status,
                    message,
                    param=param,
                    code=code,
                    retry_after=1 if status in AGAIN else None,
                )
            head: dict[str, Any] = part["head"]
            return head
        raise Lost("the stream ended before it began")


async def tried(call: Callable[[], Awaitable[T]], refusals: tuple[int, ...] = ()) -> T:
    """What `call` returns, tried again where an engine is lost, or refuses with such a status."""
    began, lost_ones = time.monotonic(), 0
    for failed in itertools.count(1):
        try:
            return await call()
        except Lost as lost:
            lost_ones += 1
            if lost_ones == TRIES:
                raise gone(lost) from lost
        except Refused as refused:
            if refused.status not in refusals or time.monotonic() - began > PATIENCE:
                raise
        await asyncio.sleep(_pause(failed))
    raise AssertionError


def gone(lost: Lost) -> Refused:
    return Refused(503, f"no engine could be reached ({lost}): try again", retry_after=5)


def _pause(failed: int) -> float:
    return float(min(LATEST, SOONEST * 2 ** min(failed - 1, 16)))
