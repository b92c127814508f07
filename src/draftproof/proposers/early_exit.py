"""Early exit: the target's own first layers draft, the whole target checks.

The last norm and the head read what a layer in the middle says; where the target was not trained
for it, through a head of `draftproof train draft --exit-layer`. No second copy of weights and no
second cache: the first layers' keys and values of committed tokens are the target's, and what the
draft writes lies in scratch, where verification writes it again. Schuster et al. 2022 (CALM, arXiv
2207.07061), Elhoushi et al. 2024 (LayerSkip, arXiv 2404.16710); a head on frozen layers: Kangaroo,
Liu et al. 2024 (arXiv 2404.18911).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from draftproof.drafting.base import GoesOn, alone
from draftproof.drafting.growing import Growing, grow
from draftproof.drafting.growth import Growth, Shape
from draftproof.heads.files import load
from draftproof.heads.module import Heads
from draftproof.heads.placed import placed
from draftproof.runners.base import Load, Output, Target, Work
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class EarlyExit(Growing):
    """Drafts with the target's first `layers` layers; a third of them unless given.

    num_draft_tokens, min_confidence, branch: as of `DraftModel`. A layer's share of a pass is what
    a drafted token costs, the head included. heads: a folder of a head that was trained to read a
    layer, which it then names; without one a target that was trained for it is worth far more.
    """

    name = "early-exit"
    stepwise, drafting_cost = True, 0.35

    def __init__(
        self,
        layers: int | None = None,
        num_draft_tokens: int | None = None,
        *,
        min_confidence: float = 0.3,
        branch: int = 2,
        heads: Heads | str | Path | None = None,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch, usual=3)
        self.heads = heads if heads is None or isinstance(heads, Heads) else load(heads)
        if self.heads is not None and self.heads.exit is None:
            raise ValueError("these heads read the last layer: use them with Medusa")
        if self.heads is not None and (layers or self.heads.exit) != self.heads.exit:
            raise ValueError(f"the head reads layer {self.heads.exit}, not {layers}: drop layers")
        self.layers = layers if self.heads is None else self.heads.exit

    def bind(self, target: Target, load: Load) -> None:
        if self.layers is not None and not 1 <= self.layers < target.layers:
            raise ValueError(
                f"layers={self.layers} is no early exit of a model with {target.layers} layers: "
                f"use 1 to {target.layers - 1}"
            )
        if target.layers < 2:
            raise ValueError("a model with one layer has no early exit: use another method")
        self.exit = self.layers or max(1, target.layers // 3)
        target.check_exit(self.exit)
        self.placed = None if self.heads is None else placed(self.heads, target)
        self.target, self.vocabulary = target, target.vocabulary

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.propose_within(requests, None)

    def propose_within(
        self, requests: Sequence[Writing], goes_on: GoesOn | None
    ) -> list[TokenTree]:
        shape = self.chain if goes_on is None else self.open
        growths = [self._start(request, shape) for request in requests]
        grow(growths, self._run, self.draw, goes_on)
        return [growth.tree() for growth in growths]

    def _start(self, request: Writing, shape: Shape) -> Growth:
        # Until the target has read the prompt its first layers have nothing to stand on.
        ready = self.target.cached(request.key) == len(request.tokens) - 1
        if request.feedback is None and alone(request):
            ready = False  # though it may be, by what an earlier request or a sibling had read
        return Growth(request, shape, request.room - 1 if ready else 0)

    def _run(self, growing: Sequence[Growth]) -> list[Output]:
        work = [
            Work(r.key, [], g.run_tree(), g.ran, encoder_input=r.encoder_input)
            for g in growing
            for r in [g.request]
        ]
        if self.placed is None:
            return self.target.forward(work, layers=self.exit)
        passed = self.target.forward(work, (-1,), self.exit, head=False)
        states = [output.hidden[-1] for output in passed]
        (logits,) = self.placed.logits(torch.cat(states))
        return [Output(rows) for rows in logits.split([len(each) for each in states])]
