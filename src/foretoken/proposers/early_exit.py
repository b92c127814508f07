"""Early exit: the target's own first layers draft, the whole target checks.

The last norm and the head read what a layer in the middle says. No second copy of weights and no
second cache: the first layers' keys and values of committed tokens are the target's, and what the
draft writes lies in scratch, where verification writes it again. Schuster et al. 2022 (CALM, arXiv
2207.07061), Elhoushi et al. 2024 (LayerSkip, arXiv 2404.16710).
"""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.proposers.growing import Growing, Growth
from foretoken.request import Request
from foretoken.runners.base import Output, Target, Work
from foretoken.tree import TokenTree


class EarlyExit(Growing):
    """Drafts with the target's first `layers` layers; a third of them unless given.

    num_draft_tokens, min_confidence, branch: as of `DraftModel`. A layer's share of a pass is what
    a drafted token costs, the head included; a target trained to exit early is worth far more.
    """

    def __init__(
        self,
        layers: int | None = None,
        num_draft_tokens: int = 3,
        *,
        min_confidence: float = 0.3,
        branch: int = 2,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch)
        self.layers = layers

    def bind(self, target: Target) -> None:
        if self.layers is not None and not 1 <= self.layers < target.layers:
            raise ValueError(
                f"layers={self.layers} is no early exit of a model with {target.layers} layers: "
                f"use 1 to {target.layers - 1}"
            )
        if target.layers < 2:
            raise ValueError("a model with one layer has no early exit: use another method")
        self.exit = self.layers or max(1, target.layers // 3)
        target.check_exit(self.exit)
        self.target, self.vocabulary = target, target.vocabulary

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        grown = [self._start(request) for request in requests]
        self.grow(grown)
        return [growth.tree() for growth in grown]

    def _start(self, request: Request) -> Growth:
        # Until the target has read the prompt its first layers have nothing to stand on.
        ready = self.target.cached(request.key) == len(request.tokens) - 1
        depth = min(self.num_draft_tokens, request.room - 1) if ready else 0
        return Growth(request, depth, [request.tokens[-1]])

    def run(self, growing: Sequence[Growth]) -> list[Output]:
        """See `Growing`."""
        work = [
            Work(growth.request.key, [], TokenTree.chain(growth.tips), growth.ran)
            for growth in growing
        ]
        return self.target.forward(work, layers=self.exit)
