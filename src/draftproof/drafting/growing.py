"""What drafting models share: growing a tree.

A model grows a chain, one pass of it per depth; the best tokens at every depth become siblings.
Stopping after a doubtful token: transformers' assisted generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from draftproof.drafting.base import Drafter
from draftproof.drafting.bush import stacked
from draftproof.drafting.together import passed
from draftproof.runners.base import Output
from draftproof.tree import TokenTree
from draftproof.writing import Children, Writing


@dataclass(slots=True)
class Growth:
    """The tree of one request while a model grows it, which itself runs only the chain of tips."""

    request: Writing
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


class Growing(Drafter):
    """A method whose model runs the chain of tips of every request, one token deeper a pass."""

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

    def draw(self, growth: Growth, output: Output) -> Children:
        """What follows the tip by the last row of the pass."""
        row, path = output.logits[-1], growth.tips[1:]
        writing = growth.request
        return writing.rule.children(writing, path, row, self.branch, self.vocabulary)

    def grow(self, grown: Sequence[Growth]) -> None:
        """Until every growth has its depth, or the model is in doubt."""
        while growing := [growth for growth in grown if growth.depth > 0]:
            self._grow(growing)

    def _grow(self, growing: Sequence[Growth]) -> None:
        """One pass of the model, and children for every tip."""
        for growth, output in passed(growing, self.run, stop):
            growth.ran = len(growth.tips)
            try:
                ids, shares, laws = self.draw(growth, output)
            except Exception as error:  # of a row, or of a rule from outside: this request's alone
                stop(growth, error)
                continue
            if ids:
                growth.add(ids, shares, laws)
            if not ids or growth.chance < self.min_confidence:
                growth.depth = 0


def stop(growth: Growth, error: Exception) -> None:
    """End a growth whose model failed, and tell the request."""
    growth.depth = 0
    growth.request.stop_drafting(error)
