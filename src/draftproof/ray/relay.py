"""What comes from elsewhere as the source of a `server.stream.Stream`, which knows clients.

One task takes the parts as they come, so that a slow client holds no engine up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from draftproof.server.refusals import Refused

logger = logging.getLogger("draftproof.server")


class Relay:
    """Parts of an answer, as they come.

    ended: called when no more are wanted, or there are none. ending: how a refusal is told then.
    It is its own `job`, as `Stream` sees it.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        ended: Callable[[], Awaitable[object]],
        ending: Callable[[Refused], bytes],
    ) -> None:
        self._ended, self._ending = ended, ending
        self.done, self._over = False, False
        self._parts, self._bell = list[bytes](), asyncio.Event()
        self._pump = asyncio.ensure_future(self._run(parts))

    @property
    def job(self) -> Relay:
        return self

    def opening(self) -> bytes:
        return b""

    def of(self, moved: Sequence[Any]) -> bytes:
        self.done = self._over
        return b"".join(moved)

    async def news(self) -> list[bytes]:
        if not (self._parts or self._over):
            await self._bell.wait()
        self._bell.clear()
        parts, self._parts = self._parts, []
        return parts or ([b""] if self._over else [])

    def wake(self) -> None:
        self._bell.set()

    def cancel(self) -> None:
        self._pump.cancel()

    async def _run(self, parts: AsyncIterator[bytes]) -> None:
        try:
            async for part in parts:
                self._parts.append(part)
                self._bell.set()
        except Exception as error:  # a defect: the client has seen the answer begin
            logger.exception("a stream failed", exc_info=error)
            said = "a defect of the server: its log has more"
            self._parts.append(self._ending(Refused(500, said)))
        finally:
            self._over = True
            self._bell.set()
            await self._ended()
