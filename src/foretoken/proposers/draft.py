"""A draft model: a smaller model writes ahead, the target checks.

The draft has its own runner and cache and catches up with a request by what it ran for it.
Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretoken.proposers.beside import Beside
from foretoken.proposers.growing import Growing, Growth
from foretoken.request import Request
from foretoken.runners.base import Output, Target
from foretoken.tree import TokenTree


class DraftModel(Growing):
    """Drafts with a model: hub id, folder or a loaded transformers model.

    num_draft_tokens: the longest draft. min_confidence: a draft ends after the token that brings
    the draft's own estimate of being accepted so far below it; that token is kept. branch: the
    best `branch` tokens at every depth become siblings, the first of them grows (a second sibling
    wins back what the coupled rule loses on a chain, and a pass over a few rows more costs little).
    quantize: "int8" runs the draft in int8 on the native runner, whatever the target runs in; the
    target itself, so quantised, is a draft too.
    """

    def __init__(
        self,
        model: Any,
        num_draft_tokens: int = 5,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
        quantize: str | None = None,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch)
        if quantize not in (None, "int8"):
            raise ValueError(f"quantize={quantize!r} is unknown: use 'int8' or None")
        self.model, self.quantize = model, quantize

    def bind(self, target: Target) -> None:
        self.beside = Beside(target.load(self.model, self.quantize), target)
        self.vocabulary = target.vocabulary

    def release(self, request: Request) -> None:
        self.beside.release(request)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        grown = [self._start(request) for request in requests]
        self.grow(grown)
        for growth in grown:
            if growth.ran:
                self.beside.ran(growth.request, TokenTree.chain(growth.tips[: growth.ran]))
        return [growth.tree() for growth in grown]

    def _start(self, request: Request) -> Growth:
        depth = min(self.num_draft_tokens, self.beside.room(request))
        ready = self.beside.catch_up(request)
        return Growth(request, depth if ready else 0, [request.tokens[-1]])

    def run(self, growing: Sequence[Growth]) -> list[Output]:
        """See `Growing`."""
        return self.beside.runner.forward(
            [
                self.beside.work(growth.request, TokenTree.chain(growth.tips), growth.ran)
                for growth in growing
            ]
        )
