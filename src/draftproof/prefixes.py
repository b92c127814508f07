"""Prompts that begin alike are read once: whoever comes later waits, and begins with a copy.

Does not know who copies, nor how.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from draftproof.request import Request
from draftproof.runners.rows import shared_length

WORTH = 32  # tokens to read for which nobody waits


class Prefixes:
    """Who waits for whose prompt to be read."""

    def __init__(self) -> None:
        self._leaders: dict[int, tuple[Request, int]] = {}  # key -> who reads, tokens in common

    def follows(
        self, request: Request, before: Sequence[Request], cached: Callable[[int], int]
    ) -> bool:
        """Whether `request` has to wait for one of those before it, who reads what they share."""
        prompt, most = array("q", request.prompt[:-1]), 0
        for other in before if not request.scores else ():
            if other.salt != request.salt or other.finished or other.scores:
                continue  # what is scored is read by itself, and cannot be copied
            shared = shared_length(array("q", other.prompt[:-1]), prompt)
            if shared > most and shared - cached(other.key) >= WORTH:
                self._leaders[request.key] = other, shared
                most = shared
        return bool(most)

    def waits(self, request: Request, cached: Callable[[int], int]) -> bool:
        """Whether it still has to."""
        leader, shared = self._leaders.get(request.key, (None, 0))
        return leader is not None and not leader.finished and cached(leader.key) < shared

    def forget(self, request: Request) -> bool:
        """It waits no longer; whether it did."""
        return self._leaders.pop(request.key, None) is not None
