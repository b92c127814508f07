"""The protocol of a drafting method.

A proposer sees requests and returns a token tree for each. It can be slow or stupid; unless it
lies in `TokenTree.laws` it cannot make the output wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from foretoken.request import Request
from foretoken.runners.base import Target
from foretoken.tree import TokenTree


class Proposer(Protocol):
    """A drafting method: any object with these two names, and the two hooks below if it has them.

    bind(target): called once, before the first step; refuses what cannot work (`ValueError`).
    release(request): the request has ended, or goes on without this proposer.
    """

    taps: tuple[int, ...]  # target layers whose hidden states it wants in `request.feedback`

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        """One tree per request, in order; node 0 is `request.tokens[-1]`."""
        ...


def bind(proposer: Proposer, target: Target) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "bind", None)
    if hook is not None:
        hook(target)


def release(proposer: Proposer, request: Request) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "release", None)
    if hook is not None:
        hook(request)


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
        laws = torch.stack([torch.zeros_like(self.laws[0]), *self.laws]) if self.laws else None
        return TokenTree(self.tokens, self.parents, laws, self.scores)
