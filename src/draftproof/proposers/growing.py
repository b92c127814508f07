"""What drafting models share: growing a tree, drawing its tokens.

A model grows a chain, one pass of it per depth; the best tokens at every depth become siblings.
Under the coupled rule it races the request's noise on its own law, so that it proposes what the
target is likely to pick (Daliri et al. 2024); under the rejection rule it draws from a stream of
its own and tells the laws it drew from. Stopping after a doubtful token: transformers' assisted
generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.proposers.together import passed
from draftproof.request import Request
from draftproof.runners.base import Output
from draftproof.tree import TokenTree


@dataclass(slots=True)
class Growth:
    """The tree of one request while a model grows it, which itself runs only the chain of tips."""

    request: Request
    depth: int  # tokens that may still be drafted
    tips: list[int]  # tokens of the chain that grows, root first
    tokens: list[int] = field(init=False)  # of the tree's nodes
    parents: list[int] = field(default_factory=lambda: [-1])
    laws: list[Tensor] = field(default_factory=list)  # one (V,) per node but node 0
    scores: list[float] = field(default_factory=lambda: [1.0])
    tip: int = 0  # the node of the last tip
    ran: int = 0  # tips that the model has run
    chance: float = 1.0  # the model's own estimate that every tip is accepted

    def __post_init__(self) -> None:
        self.tokens = self.tips[:1]

    def add(self, ids: Sequence[int], shares: Sequence[float], laws: Sequence[Tensor]) -> None:
        """Give the tip children, best first; the first one becomes the tip."""
        first = len(self.parents)
        self.tokens += ids
        self.parents += [self.tip] * len(ids)
        self.laws += laws
        self.scores += [self.chance * share for share in shares]
        self.tips.append(ids[0])
        self.tip, self.depth, self.chance = first, self.depth - 1, self.chance * shares[0]

    def tree(self) -> TokenTree:
        return TokenTree(self.tokens, self.parents, stacked(self.laws), self.scores)


def stacked(laws: Sequence[Tensor]) -> Tensor | None:
    """Laws (N, V) of a tree from those of its nodes but node 0; None without any."""
    return torch.stack([torch.zeros_like(laws[0]), *laws]) if laws else None


class Growing:
    """A method whose model runs the chain of tips of every request, one token deeper a pass."""

    taps: tuple[int, ...] = ()
    vocabulary: int  # the target's

    def __init__(self, num_draft_tokens: int, min_confidence: float, branch: int) -> None:
        if num_draft_tokens < 1 or branch < 1:
            raise ValueError("num_draft_tokens and branch must be 1 or more")
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence={min_confidence} is not within [0, 1]")
        self.num_draft_tokens = num_draft_tokens
        self.min_confidence, self.branch = min_confidence, branch

    def run(self, growing: Sequence[Growth]) -> list[Output]:
        """A pass of the model over the tips that it has not run; the last row is the tip's."""
        raise NotImplementedError

    def grow(self, grown: Sequence[Growth]) -> None:
        """Until every growth has its depth, or the model is in doubt."""
        while growing := [growth for growth in grown if growth.depth > 0]:
            self._grow(growing)

    def _grow(self, growing: Sequence[Growth]) -> None:
        """One pass of the model, and children for every tip."""
        for growth, output in passed(growing, self.run, stop):
            growth.ran = len(growth.tips)
            try:
                row = output.logits[-1][: self.vocabulary]
                path = growth.tips[1:]
                growth.add(*children(growth.request, path, row, self.branch, self.vocabulary))
            except sampling.NoCandidate as error:
                stop(growth, error)
            if growth.chance < self.min_confidence:
                growth.depth = 0


def stop(growth: Growth, error: Exception) -> None:
    """End a growth whose model failed, and tell the request."""
    growth.depth = 0
    growth.request.stop_drafting(error)


def children(
    request: Request, path: Sequence[int], row: Tensor, count: int, vocabulary: int
) -> tuple[list[int], list[float], list[Tensor]]:
    """At most `count` tokens after `path`, their probabilities, and their laws under rejection.

    row: the model's logits (V,), of which there may be fewer than the target's `vocabulary`.
    Raises `NoCandidate`.
    """
    params = request.params
    if request.rule == "rejection" and params.temperature > 0:
        law = sampling.law(row, params, request.history, path).cpu()
        law = torch.nn.functional.pad(law, (0, vocabulary - len(law)))
        ids, laws = sampling.draw_distinct(law, count, request.generator(0))
        return ids, [float(law[token]) for token in ids], laws
    return race(request, path, row, count)


def race(
    request: Request, path: Sequence[int], row: Tensor, count: int
) -> tuple[list[int], list[float], list[Tensor]]:
    """At most `count` tokens after `path` by the request's noise, their probabilities, no laws.

    Where the target does not use that noise (another rule), the likeliest ones.
    """
    params, position = request.params, len(request.tokens) + len(path)
    if request.rule != "coupled":
        params = replace(params, temperature=0.0)
    ids, shares = sampling.race(row, params, request.history, path, request.noise, position, count)
    return ids, shares, []
