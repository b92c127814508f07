"""A draft model: a smaller model writes ahead, the target checks.

The draft has its own runner and cache and catches up with a request by what it ran for it.
Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from draftproof.drafting.base import GoesOn, alone
from draftproof.drafting.beside import Beside
from draftproof.drafting.fitting import FIXED, Costs, Fit, widths
from draftproof.drafting.growing import Growing, grow_beside
from draftproof.drafting.growth import Ranks, Shape
from draftproof.runners.base import Load, Target
from draftproof.shapes import choices_to_parents
from draftproof.tree import TokenTree
from draftproof.writing import Writing

NODES, DEPTH = 16, 8  # of a fitted tree, at most


class DraftModel(Growing):
    """Drafts with a model: hub id, folder or a loaded transformers model.

    num_draft_tokens: the longest draft; 5 unless given, and under `Auto` what pays. min_confidence:
    a draft ends after the token that brings the draft's own estimate of being accepted so far below
    it; that token is kept. branch: the best `branch` tokens at every depth become siblings, the
    first of them grows (a second sibling wins back what the coupled rule loses on a chain, and a
    pass over a few rows more costs little). quantize: "int8" or "int4" runs the draft so on the
    native runner, whatever the target runs in, and "none" in the target's precision; unless given,
    int8 beside a native target in bfloat16. The target itself, so quantised, is a draft too.
    tree: instead of a chain with siblings, the paths of ranks to grow, [(0,), (1,), (0, 0)]; or
    "auto", the tree that pays best by what was accepted so far and by what passes cost, which
    `bind` measures. For a request that is sampled under another rule than the coupled one "auto"
    goes by that request and by fixed costs alone: there another tree is another text, and the same
    seed must give the same one. `min_confidence` and `branch` are of chains.
    """

    name = "draft"
    stepwise, drafting_cost, promise = True, 0.15, 0.7

    def __init__(
        self,
        model: Any,
        num_draft_tokens: int | None = None,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
        quantize: str | None = None,
        tree: str | Sequence[Sequence[int]] | None = None,
    ) -> None:
        if tree is not None and num_draft_tokens is not None:
            raise ValueError("tree says how deep a draft is: drop num_draft_tokens")
        super().__init__(num_draft_tokens, min_confidence, branch, usual=5)
        if quantize not in (None, "none", "int8", "int4"):
            raise ValueError(f"quantize={quantize!r} is unknown: use 'int8', 'int4' or 'none'")
        self.widths: Counter[Ranks] | None = None  # children by ranks, where they are prescribed
        if isinstance(tree, str):
            if tree != "auto":
                raise ValueError(f"tree={tree!r} is unknown: use 'auto', paths of ranks, or None")
        elif tree is not None:
            self.widths = widths(choices_to_parents(tree))
        self.model, self.quantize, self.fitted = model, quantize, tree == "auto"
        self.fit: Fit | None = None  # of all requests whose text does not depend on it
        self._fits: dict[int, Fit] = {}  # of the others, one each
        # To learn from, where shapes are fitted: the last tree, and passes of the text before it.
        self._last: dict[int, tuple[TokenTree, int]] = {}

    def bind(self, target: Target, load: Load) -> None:
        self.beside = Beside(load(target, self.model, self.quantize), target)
        self.vocabulary = target.vocabulary
        if self.fitted:
            self.fit = Fit(Costs.measured(target, self.beside.runner, NODES), NODES, DEPTH)
        self._fits.clear()
        self._last.clear()

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.beside.catch_up(requests, ahead=True)

    def release(self, request: Writing) -> None:
        self.beside.release(request)
        self._fits.pop(request.key, None)
        self._last.pop(request.key, None)

    def close(self) -> None:
        self.beside.close()
        self._fits.clear()
        self._last.clear()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.propose_within(requests, None)

    def propose_within(
        self, requests: Sequence[Writing], goes_on: GoesOn | None
    ) -> list[TokenTree]:
        if (shared := self.fit) is not None:
            fits = {r.key: self._fit(r) if alone(r) else shared for r in requests}
            for request in requests:
                tree, passes = self._last.get(request.key, (None, 0))
                if tree is not None and request.passes <= passes + 1:  # else others drafted since
                    fits[request.key].learn(request, tree)
            keys = [request.key for request in requests]
            shapes = [Shape(fits[key].widths.__getitem__, DEPTH) for key in keys]
            trees = self._shaped(requests, shapes, goes_on)
            drafted = zip(trees, (request.passes for request in requests), strict=True)
            self._last.update(zip(keys, drafted, strict=True))
            return trees
        if (widths := self.widths) is not None:
            return self._shaped(requests, [Shape(widths.__getitem__)] * len(requests), goes_on)
        shape = self.chain if goes_on is None else self.open
        return self._shaped(requests, [shape] * len(requests), goes_on)

    def _fit(self, request: Writing) -> Fit:
        return self._fits.setdefault(request.key, Fit(FIXED, NODES, DEPTH))

    def _shaped(
        self, requests: Sequence[Writing], shapes: Sequence[Shape], goes_on: GoesOn | None
    ) -> list[TokenTree]:
        return grow_beside(self.beside, requests, shapes, self.draw, goes_on)
