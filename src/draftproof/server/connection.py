"""A connection that does not wait for ever: headers have to come in time, and to be short.

uvicorn's own has no limit for headers that are never complete. Of calls that a client sends without
waiting for answers it tells the last one alone that the client has left; and a call that offers
another protocol it reads without its body.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0  # for the headers of a request
HEAD_BYTES = 128 << 10  # of headers that are not complete
AHEAD = 16  # calls behind the one that is answered, until no more are read
OFFER = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*", re.IGNORECASE)
END = b"\r\n\r\n"  # of headers


class Connection(HttpToolsProtocol):
    """Closes itself where the next request's headers take too long, or too much."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True  # the next bytes are headers
    _heads = 0  # that are complete
    _size = 0  # bytes of headers that are not
    _open: tuple[Any, ...] = ()  # calls that have no whole answer

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.pipeline.clear()
        for cycle in self._open:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        heads, in_head = self._heads, self._in_head
        if in_head:  # what Java's client offers, HTTP/2, is refused by going on without it
            head, end, rest = data.partition(END)
            data = OFFER.sub(b"", head) + end + rest
        super().data_received(data)
        if not in_head or self._heads > heads or self.transport.is_closing():
            return  # the end of a body is none of the next headers
        if self._timer is None:  # the first bytes behind an answer
            self._await()
        self._size += len(data)
        if self._size > HEAD_BYTES:
            self.send_400_response("Headers too long.")

    def on_headers_complete(self) -> None:
        self._stop()
        self._heads, self._size, self._in_head = self._heads + 1, 0, False
        super().on_headers_complete()
        self._open = *(each for each in self._open if not each.response_complete), self.cycle
        if len(self.pipeline) < AHEAD:  # what is not read tells nobody that the client has left
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def _await(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
