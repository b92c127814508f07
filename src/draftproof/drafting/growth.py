"""A token tree while a model grows it, and the shape that it is to get.

How many children a node gets is settled before anything is drawn, so the tree may carry the laws of
its nodes. A chain with siblings is a shape too: of each level the best node gets children. The
model runs only nodes that get children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.tree import TokenTree
from draftproof.writing import Children, Writing

Ranks = tuple[int, ...]  # (2, 0): the first child of the third child of node 0


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tree is to grow: its node at `ranks` gets width(ranks) children.

    depth: levels, at most. min_confidence: growing ends behind a level to whose nodes the model
    itself gives less, of being accepted.
    """

    width: Callable[[Ranks], int]
    depth: int
    min_confidence: float = 0.0


@dataclass(slots=True)
class Growth:
    """The tree of one request while a model grows it."""

    request: Writing
    shape: Shape
    room: int  # levels that it may still get
    tokens: list[int] = field(init=False)
    parents: list[int] = field(default_factory=lambda: [-1])
    laws: list[Tensor] = field(default_factory=list)  # one (V,) per node but node 0
    scores: list[float] = field(default_factory=lambda: [1.0])
    tips: dict[int, Ranks] = field(default_factory=lambda: {0: ()})  # nodes that get children next
    ran: list[int] = field(default_factory=list)  # nodes that the model ran

    def __post_init__(self) -> None:
        self.tokens = self.request.tokens[-1:]
        self.room = min(self.room, self.shape.depth)

    def path(self, node: int) -> list[int]:
        """The tokens behind node 0 up to `node`."""
        tokens = []
        while node:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def level(self, level: Iterable[Children]) -> None:
        """Give every tip its children, best first."""
        tips, self.tips = self.tips, {}
        for (tip, ranks), (ids, shares, laws) in zip(tips.items(), level, strict=True):
            for rank, share in enumerate(shares):
                if self.shape.width((*ranks, rank)):
                    self.tips[len(self.scores)] = (*ranks, rank)
                self.scores.append(self.scores[tip] * share)
            self.tokens += ids
            self.parents += [tip] * len(ids)
            self.laws += laws
        best = max((self.scores[tip] for tip in self.tips), default=0.0)
        self.room = 0 if best < self.shape.min_confidence or not self.tips else self.room - 1

    def run(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of `nodes`, each behind its parent."""
        where = {node: number for number, node in enumerate(nodes)}
        parents = [where.get(self.parents[node], -1) for node in nodes]
        return TokenTree([self.tokens[node] for node in nodes], parents)

    def tree(self) -> TokenTree:
        return TokenTree(self.tokens, self.parents, stacked(self.laws), self.scores)


def stacked(laws: Sequence[Tensor]) -> Tensor | None:
    """Laws (N, V) of a tree from those of its nodes but node 0; None without any."""
    return torch.stack([torch.zeros_like(laws[0]), *laws]) if laws else None
