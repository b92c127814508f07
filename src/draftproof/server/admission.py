"""Who is let in: the one place that decides whether a call may wait, and when to come again.

Counts completions and the tokens of their prompts that have no place yet. Knows no model's memory:
a place is one of `max_batch` rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from draftproof.request import Request
from draftproof.server.refusals import Refused, bad
from draftproof.server.settings import DEAD, DRAINING, LOADING, Limits

LATELY = 0.2  # share of the newest in the mean
LONGEST = 60  # seconds that a client is asked to wait


class Admission:
    """A bounded queue. places: requests that run at once.

    refused: told of every call that found the queue full, with the limit's name.
    """

    def __init__(self, limits: Limits, refused: Callable[[str], None]) -> None:
        self.limits, self.places, self.state = limits, 1, LOADING
        self._refused = refused
        self._in: dict[int, Request] = {}  # all that were let in and have not ended
        self._seconds = 1.0  # that a request took of late

    @property
    def load(self) -> int:
        """Completions that run or wait."""
        return len(self._in)

    @property
    def waiting(self) -> list[Request]:
        return [request for request in self._in.values() if not request.stats.placed]

    def check(self, count: int, tokens: int = 0) -> None:
        """Whether so many completions may come, whose prompts have so many tokens in all.

        Raises `Refused`: 503 while nothing is served, 429 while too many wait.
        """
        if self.state == LOADING:
            raise Refused(503, "the model is being loaded: try again", retry_after=5)
        if self.state == DRAINING:
            raise Refused(503, "the server is about to end and takes no more", retry_after=10)
        if self.state == DEAD:
            raise Refused(503, "the engine has failed: the server has to be started again")
        most = self.limits.queued + self.places
        if count > (texts := min(self.limits.texts, most)):
            raise bad(f"{count} completions are asked for, and one call has at most {texts}", "n")
        waiting = self.waiting
        if self.load + count > most:
            self._full("max_num_queued_reqs", f"{len(waiting)} completions wait already")
        queued = sum(request.read for request in waiting)
        if waiting and queued + tokens > self.limits.queued_tokens:
            self._full("max_num_queued_tokens", f"prompts of {queued:,} tokens wait already")

    def enter(self, requests: Sequence[Request]) -> None:
        self._in |= {request.key: request for request in requests}

    def leave(self, request: Request) -> None:
        if self._in.pop(request.key, None) is not None:
            took = time.monotonic() - (request.stats.placed or request.stats.began)
            self._seconds += LATELY * (took - self._seconds)

    @property
    def retry_after(self) -> int:
        """Seconds until a place is likely to be free."""
        rounds = 1 + len(self.waiting) // max(self.places, 1)
        return min(LONGEST, max(1, math.ceil(rounds * self._seconds)))

    def _full(self, limit: str, why: str) -> None:
        self._refused(limit)
        raise Refused(429, f"{why}: try again later", code=limit, retry_after=self.retry_after)
