"""A token tree while a model grows it, and the shape that it is to get.

How many children a node gets is settled before anything is drawn, so the tree may carry the laws of
its nodes. A chain with siblings is a shape too: of each level the best node gets children. The
model runs only nodes that get children.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.drafting.base import Partial
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
    depth: int = sys.maxsize
    min_confidence: float = 0.0


class Tip(NamedTuple):
    """A node that gets children next."""

    node: int
    ranks: Ranks
    children: int  # so many
    place: int  # among the nodes that the model runs
    path: list[int]  # the tokens behind node 0 up to it


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
    tips: list[Tip] = field(default_factory=list)
    ran: int = 0  # nodes that the model ran, which are the first of those that it runs
    _run_tokens: list[int] = field(init=False)
    _run_parents: list[int] = field(default_factory=lambda: [-1])

    def __post_init__(self) -> None:
        self.tokens = self.request.tokens[-1:]
        self._run_tokens = self.tokens[:]
        if count := self.shape.width(()):
            self.tips = [Tip(0, (), count, 0, [])]
        self.room = min(self.room, self.shape.depth) if self.tips else 0

    def level(self, level: Iterable[Children]) -> None:
        """Give every tip its children, best first."""
        tips, self.tips, best = self.tips, [], 0.0
        for tip, (ids, shares, laws) in zip(tips, level, strict=True):
            for rank, (token, share) in enumerate(zip(ids, shares, strict=True)):
                score, ranks = self.scores[tip.node] * share, (*tip.ranks, rank)
                if count := self.shape.width(ranks):
                    best = max(best, score)
                    place, path = len(self._run_tokens), [*tip.path, token]
                    self.tips.append(Tip(len(self.scores), ranks, count, place, path))
                    self._run_tokens.append(token)
                    self._run_parents.append(tip.place)
                self.scores.append(score)
            self.tokens += ids
            self.parents += [tip.node] * len(ids)
            self.laws += laws
        self.room = 0 if best < self.shape.min_confidence or not self.tips else self.room - 1

    def run_tree(self, count: int | None = None) -> TokenTree:
        """What the model runs, or the first `count` nodes of it: those that get children."""
        return TokenTree(self._run_tokens[:count], self._run_parents[:count])

    def tree(self) -> TokenTree:
        return TokenTree(self.tokens, self.parents, stacked(self.laws), self.scores)


def levels(growth: Partial) -> int:
    """Levels that it has, the last of which its last node is on."""
    node, count = len(growth.tokens) - 1, 0
    while node:
        node, count = growth.parents[node], count + 1
    return count


def stacked(laws: Sequence[Tensor]) -> Tensor | None:
    """Laws (N, V) of a tree from those of its nodes but node 0; None without any."""
    return torch.stack([torch.zeros_like(laws[0]), *laws]) if laws else None
