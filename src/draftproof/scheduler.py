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

from draftproof.memory import Memory
from draftproof.prefixes import Prefixes
from draftproof.request import Request
from draftproof.runners.costs import PassCosts

PROMPT_BUDGET = 512  # tokens of prompts in one pass, where nobody writes
SCORED = 128  # of them, where each has a row of logits


@dataclass(frozen=True, slots=True)
class Turn:
    """One request in one step: its uncached committed tokens, and whether they are all.

    at: tokens that are cached, behind which `new` stands.
    """

    request: Request
    at: int
    new: list[int]
    whole: bool  # everything before the last token is cached or in `new`: a tree may follow


class Scheduler:
    """At most `max_batch` running requests; the others wait in order.

    costs: of passes, by which prompts are sliced beside requests that write. gap: milliseconds that
    such a pass may take; None: some times as long as a plain one, see `Slices`. memory: what may be
    taken of it; None: whatever there is.
    """

    def __init__(
        self,
        max_batch: int,
        prompt_budget: int = PROMPT_BUDGET,
        *,
        costs: PassCosts | None = None,
        gap: float | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.max_batch, self.prompt_budget = max_batch, prompt_budget
        self.costs, self.gap, self.memory = costs, gap, memory
        self.shares = False  # whether what was read for one request another may copy
        self._prefixes = Prefixes()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Any thread may, while another one steps."""
        self.waiting.append(request)

    def may_run(self, request: Request) -> bool:
        """Whether it was given to nobody, or here; one that has ended is nowhere."""
        held = request in self.running or request in self.waiting
        return held or not request.added or request.finished

    def remove(self, request: Request) -> None:
        if self.memory is not None:
            self.memory.release(request)
        self._prefixes.forget(request)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def heir(self, request: Request) -> Request | None:
        """The request that waits longest for the place of `request`, if their prompt is one."""
        if not request.siblings or request not in self.running or not self.waiting:
            return None
        first = self.waiting[0]
        # One that goes on elsewhere needs another room than its prompt's other completions.
        return first if first.key in request.siblings and not first.resumed else None

    def promote(self, request: Request, ended: Request) -> None:
        """Let a waiting request run, before the others that wait, with the row of one that ends."""
        request.stats.placed = time.monotonic()
        if self.memory is not None:
            self.memory.inherit(ended, request)
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
        self._admit(cached, begin)
        ready, done, unread, most = [], [], [], []
        for request in self.running:
            if self.memory is not None:
                self.memory.extend(request)
            self._catch_up(request, cached, begin)
            if request.finished or self._waits(request, cached, fork):  # it may fail in `begin`
                continue
            ready.append(request)
            done.append(cached(request.key))
            unread.append(len(request.tokens) - 1 - done[-1])
            most.append(min(unread[-1], SCORED) if request.scores else unread[-1])
        turns, rows = [], SCORED  # of logits, for those whose prompts are scored
        shares = self._shares(most, self._budget(done, unread))
        for request, at, left, share in zip(ready, done, unread, shares, strict=True):
            scored = request.scores and left > 0
            if scored:
                share = min(share, rows)
                rows -= share
            if share or not left:
                whole = share == left and not scored
                turns.append(Turn(request, at, request.tokens[at : at + share], whole))
        return turns

    def _admit(self, cached: Callable[[int], int], begin: Callable[[Request], None]) -> None:
        """Fill free places, in order; what an interrupt leaves between two lines is not lost."""
        while self.waiting and (
            len(self.running) < self.max_batch or self.waiting[0] in self.running
        ):
            request = self.waiting[0]
            if request not in self.running:
                if not self._has_room(request):
                    return
                request.stats.placed = time.monotonic()
                self.running.append(request)
            self.waiting.popleft()
            if request.finished:
                continue
            before = self.running[:-1]
            if any(other.key in request.siblings for other in before):
                continue  # it is given what they have read
            if not self.shares or not self._prefixes.follows(request, before, cached):
                begin(request)

    def _has_room(self, request: Request) -> bool:
        """Whether it may run now; one that never may fails, and ends as those that run do."""
        try:
            return self.memory is None or self.memory.admit(request)
        except ValueError as error:
            request.fail(MemoryError(error))
            return True

    def _catch_up(
        self,
        request: Request,
        cached: Callable[[int], int],
        begin: Callable[[Request], None],
    ) -> None:
        """Let it begin as soon as the one that it waited for has read what they share."""
        if not self._prefixes.waits(request, cached) and self._prefixes.forget(request):
            begin(request)

    def _waits(
        self,
        request: Request,
        cached: Callable[[int], int],
        fork: Callable[[Request, Request], bool],
    ) -> bool:
        """Whether another completion is reading the prompt for it; takes over what was read."""
        if self._prefixes.waits(request, cached):
            return True
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
        readers = sum(map(bool, unread))
        writers = len(unread) - readers
        if not writers or not readers or self.costs is None or not self.costs.passes:
            return self.prompt_budget
        behind = max(at for at, left in zip(done, unread, strict=True) if left)
        seconds = None if self.gap is None else self.gap / 1000
        return self.costs.slices.tokens(writers, readers, behind, self.prompt_budget, seconds)

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
