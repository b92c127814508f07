"""Who runs this step, and how much of a long prompt is read.

First come, first served; a free place is filled at once. Long prompts are read in slices under a
token budget, so that running requests keep writing. Does not know runners or methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from draftproof.request import Request

PROMPT_BUDGET = 512  # tokens of prompts in one pass: about the time of a few decoding passes


@dataclass(frozen=True, slots=True)
class Turn:
    """One request in one step: its uncached committed tokens, and whether they are all."""

    request: Request
    new: list[int]
    whole: bool  # everything before the last token is cached or in `new`: a tree may follow


class Scheduler:
    """At most `max_batch` running requests; the others wait in order."""

    def __init__(self, max_batch: int, prompt_budget: int = PROMPT_BUDGET) -> None:
        self.max_batch, self.prompt_budget = max_batch, prompt_budget
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def pick(
        self, cached: Callable[[int], int], begin: Callable[[Request], None] | None = None
    ) -> list[Turn]:
        """The turns of this step; a request whose prompt found no budget has none.

        cached: tokens of a key that need not be read; begin: told of a request that gets a place.
        """
        while self.waiting and len(self.running) < self.max_batch:
            self.running.append(self.waiting.popleft())
            if begin is not None:
                begin(self.running[-1])
        turns, budget = [], self.prompt_budget
        for request in self.running:
            done, last = cached(request.key), len(request.tokens) - 1
            end = min(last, done + budget)
            if end == done < last:
                continue
            budget -= end - done
            turns.append(Turn(request, request.tokens[done:end], whole=end == last))
        return turns
