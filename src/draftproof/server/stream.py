"""How an answer gets to a client that may leave at any time, or read slowly.

Raw ASGI: one task writes, another one waits for the client to leave, and then the job is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftproof.server.job import Job

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Stream(Response):
    """Server-sent events of a job. stall: seconds that a client may take nothing."""

    def __init__(self, job: Job, events: AsyncIterator[bytes], stall: float) -> None:
        super().__init__()
        self.job, self.events, self.stall = job, events, stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(body: bytes, more: bool) -> None:
            async with asyncio.timeout(self.stall):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        leaves = asyncio.ensure_future(left(receive))
        leaves.add_done_callback(lambda _: self.job.cancel())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            async for event in self.events:
                if leaves.done():
                    return
                await pass_on(event, True)
            await pass_on(b"", False)
        except TimeoutError:
            return  # whoever reads nothing has left
        finally:
            leaves.cancel()  # and with it the job, unless it is done


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
