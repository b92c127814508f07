"""How an answer gets to a client that may leave at any time, or read slowly.

Raw ASGI: one task writes, another one waits for the client to leave, and then the job is cancelled.
Between two passes of the model every cache is cold, so that each layer of code that a chunk goes
through costs as much as its bytes: it is handed to the socket past the application's layers, and
one timer looks at the stream now and then instead of a limit around each chunk.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftproof.server.chunks import ALIVE
from draftproof.server.events import Events
from draftproof.server.job import Job
from draftproof.server.responses.output import Answer

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LOOKS = 4  # at a stream, in the time that it may be quiet


class Stream(Response):
    """Server-sent events of a job.

    stall: seconds that a client may take nothing; keep_alive: without an event, until a comment
    is sent.
    """

    def __init__(self, events: Events | Answer, stall: float, keep_alive: float) -> None:
        super().__init__()
        self.job, self.events = events.job, events
        self.stall, self.keep_alive = stall, keep_alive
        self._since, self._sending = 0.0, False  # when the last sending began or ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writes = asyncio.ensure_future(self._write(scope["draftproof"]["send"], send))
        leaves = asyncio.ensure_future(left(receive))
        looks = asyncio.ensure_future(self._look(writes))
        try:
            await asyncio.wait({writes, leaves}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.job.cancel()
            for task in (leaves, looks, writes):
                task.cancel()
        if writes.done() and not writes.cancelled():
            writes.result()  # or what it failed with

    async def _write(self, straight: Send, send: Send) -> None:
        """straight: to the server, past the layers that have seen the answer begin."""
        clock = asyncio.get_running_loop().time
        self._since = clock()
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
        body = self.events.opening()
        while not self.events.done:
            if body:
                self._since, self._sending = clock(), True
                await straight({"type": "http.response.body", "body": body, "more_body": True})
                self._since, self._sending = clock(), False
            moved = await self.job.news()
            body = self.events.of(moved) if moved else ALIVE
        self._since, self._sending = clock(), True
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _look(self, writes: asyncio.Future[None]) -> None:
        """Now and then: whoever reads nothing has left, and a proxy must see that we have not."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(self.stall, self.keep_alive) / LOOKS)
            quiet = clock() - self._since
            if self._sending and quiet >= self.stall:
                writes.cancel()
            elif not self._sending and quiet >= self.keep_alive:
                self.job.wake()


async def left(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def finished(job: Job, request: Request) -> bool:
    """Waits for the job; False if the client left before, with which the job is cancelled."""
    leaves = asyncio.ensure_future(left(request.receive))
    ends = asyncio.ensure_future(job.finish())
    try:
        await asyncio.wait({leaves, ends}, return_when=asyncio.FIRST_COMPLETED)
        return ends.done()
    finally:
        job.cancel()
        leaves.cancel()
        ends.cancel()
