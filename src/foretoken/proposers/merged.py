"""Several methods at once: their trees are merged by (parent, token)."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.proposers.base import Proposer, bind, release
from foretoken.request import Request
from foretoken.runners.base import Target
from foretoken.tree import TokenTree, merge


class Merged:
    """A hybrid: what any of its parts proposes. Its trees carry no laws: one-hot is exact."""

    def __init__(self, parts: Sequence[Proposer]) -> None:
        self.parts = parts
        self.taps = tuple(sorted({tap for part in parts for tap in part.taps}))

    def bind(self, target: Target) -> None:
        for part in self.parts:
            bind(part, target)

    def release(self, request: Request) -> None:
        for part in self.parts:
            release(part, request)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        proposed = [part.propose(requests) for part in self.parts]
        return [merge(trees) for trees in zip(*proposed, strict=True)]
