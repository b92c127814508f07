"""Who runs this step, and how much of a long prompt is read.

First come, first served; a free place is filled at once. Prompts are read in slices under a token
budget that all share, and beside requests that write only as much as keeps them waiting no longer
than is wanted. Does not know runners or methods.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.request import Request
from draftproof.runners.costs import PassCosts

PROMPT_BUDGET = 512  # tokens of prompts in one pass, where nobody writes
SCORED = 128  # of them, where each has a row of logits


@dataclass(frozen=True, slots=True)
class Turn:
    """One request in one step: its uncached committed tokens, and whether they are all."""

    request: Request
    new: list[int]
    whole: bool  # everything before the last token is cached or in `new`: a tree may follow


class Scheduler:
    """At most `max_batch` running requests; the others wait in order.

    costs: of passes, by which prompts are sliced beside requests that write. gap: milliseconds that
    such a pass may take; None: some times as long as without the slice.
    """

    def __init__(
        self,
        max_batch: int,
        prompt_budget: int = PROMPT_BUDGET,
        *,
        costs: PassCosts | None = None,
        gap: float | None = None,
    ) -> None:
        self.max_batch, self.prompt_budget = max_batch, prompt_budget
        self.costs, self.gap = costs, gap
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Any thread may, while another one steps."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def heir(self, request: Request) -> Request | None:
        """The request that waits longest for the place of `request`, if their prompt is one."""
        if not request.siblings or request not in self.running or not self.waiting:
            return None
        first = self.waiting[0]
        return first if first.key in request.siblings else None

    def promote(self, request: Request) -> None:
        """Let a waiting request run, before the others that wait."""
        request.stats.placed = time.monotonic()
        self.running.append(request)
        self.waiting.remove(request)

    def next_turns(
        self,
        cached: Callable[[int], int],
        begin: Callable[[Request], None] = lambda request: None,
        fork: Callable[[Request, Request], bool] = lambda request, sibling: False,
    ) -> list[Turn]:
        """The turns of this step; a request whose prompt found no budget has none.

        cached: tokens of a key that need not be read; begin: told of a request that gets a place;
        fork: lets a request begin with the prompt that another completion of it has read.
        """
        self._admit(begin)
        ready, done, unread = [], [], []
        for request in self.running:
            if request.finished or self._waits(request, cached, fork):  # it may fail in `begin`
                continue
            ready.append(request)
            done.append(cached(request.key))
            unread.append(len(request.tokens) - 1 - done[-1])
        turns, scored = [], SCORED
        shares = self._shares(unread, self._budget(done, unread))
        for request, at, left, share in zip(ready, done, unread, shares, strict=True):
            if request.scores and left:
                share = min(share, scored)
                scored -= share
            if share or not left:
                whole = share == left and not (request.scores and left)
                turns.append(Turn(request, request.tokens[at : at + share], whole))
        return turns

    def _admit(self, begin: Callable[[Request], None]) -> None:
        """Fill free places; what an interrupt leaves between two lines is not lost."""
        while self.waiting and (
            len(self.running) < self.max_batch or self.waiting[0] in self.running
        ):
            request = self.waiting[0]
            if request not in self.running:
                request.stats.placed = time.monotonic()
                self.running.append(request)
            self.waiting.popleft()
            if not any(other.key in request.siblings for other in self.running[:-1]):
                begin(request)  # else it is given what they have read

    def _waits(
        self,
        request: Request,
        cached: Callable[[int], int],
        fork: Callable[[Request, Request], bool],
    ) -> bool:
        """Whether another completion is reading the prompt for it; takes over what was read."""
        length = len(request.prompt) - 1
        if not request.siblings or cached(request.key) >= length:
            return False
        for other in self.running:
            if other is request:
                return False
            if other.key in request.siblings and cached(other.key) < length:
                return True
            if other.key in request.siblings and fork(request, other):
                return False
        return False

    def _budget(self, done: Sequence[int], unread: Sequence[int]) -> int:
        """Tokens of prompts that the pass of this step may read."""
        writers = sum(not left for left in unread)
        if not writers or writers == len(unread) or self.costs is None or not self.costs.passes:
            return self.prompt_budget
        behind = max(at for at, left in zip(done, unread, strict=True) if left)
        seconds = None if self.gap is None else self.gap / 1000
        return self.costs.slice(writers, behind, self.prompt_budget, seconds)

    def _shares(self, unread: Sequence[int], budget: int) -> list[int]:
        """Tokens that each may read now.

        Half of the budget is for the one that came first, so that nobody waits for ever; the rest
        for those that have least to read, so that nobody waits for a long prompt.
        """
        shares = [0] * len(unread)
        if not any(unread):
            return shares
        first = next(at for at, left in enumerate(unread) if left)
        shares[first] = min(unread[first], (budget + 1) // 2)
        budget -= shares[first]
        for at in sorted(range(len(unread)), key=lambda at: unread[at] - shares[at]):
            more = min(unread[at] - shares[at], budget)
            shares[at] += more
            budget -= more
        return shares
