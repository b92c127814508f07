"""One call: the texts that it asks for, and the news of them.

Lives on the event loop; the engine's thread writes the requests, and `Front` hands over what moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from draftproof.request import Request


class Job:
    """The requests of one call, in the order of its answer's choices.

    id: of the answer. abort: ends requests that run. prompts: how many there are; each has equally
    many completions.
    """

    def __init__(
        self, id: str, requests: Sequence[Request], abort: Callable[[Sequence[Request]], None]
    ) -> None:
        self.id, self.requests = id, requests
        self.created = int(time.time())
        self._abort = abort
        self._left = {request.key for request in requests}
        self._moved: list[Request] = []
        self._bell: asyncio.Future[None] | None = None  # of whoever waits for news
        self._end: asyncio.Future[None] | None = None  # of whoever gathers them
        self.told: dict[int, tuple[float, int]] = {}  # key -> when it wrote last, and tokens then
        self.then: Callable[[], object] = lambda: None  # called when all have ended
        self.about: dict[str, str] = {}  # of the call, for the log

    @property
    def prompts(self) -> list[Request]:
        """The first completion of each prompt."""
        return [request for request in self.requests if request.index == 0]

    def head(self, index: int) -> Request:
        """The first completion of the prompt of request `index`."""
        return self.requests[index - self.requests[index].index]

    @property
    def done(self) -> bool:
        return not self._left

    def ended(self, request: Request) -> bool:
        """Whether all that becomes of it is known."""
        return request.key not in self._left

    def tell(self, request: Request, ended: bool) -> None:
        """The request wrote or ended."""
        if ended:
            self._left.discard(request.key)
            if self.done and self._end is not None and not self._end.done():
                self._end.set_result(None)
        self._moved.append(request)
        self.wake()

    def wake(self) -> None:
        """Whoever waits for news has none, unless something moved."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def news(self) -> list[Request]:
        """What moved since the last look, as soon as anything has; none where `wake` was called."""
        if not self._moved:
            self._bell = asyncio.get_running_loop().create_future()
            await self._bell
        moved, self._moved = self._moved, []
        return moved

    async def gather(self, seconds: float) -> None:
        """So long, or until all have ended: what is written meanwhile is told at once."""
        if seconds > 0 and not self.done:
            self._end = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._end}, timeout=seconds)

    async def finish(self) -> None:
        """Until all have ended."""
        while not self.done:
            await self.news()

    def cancel(self) -> None:
        """Nobody waits for it any more: what still runs ends with the current step."""
        if not self.done:
            self._abort([each for each in self.requests if not self.ended(each)])
