"""A tree that a draft model grows level by level, every node with as many children as it is given.

How many is decided before anything is drawn, so the tree may carry the laws of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from draftproof.drafting.beside import Beside
from draftproof.drafting.together import passed
from draftproof.runners.base import Output
from draftproof.tree import TokenTree
from draftproof.writing import Children, Writing

Ranks = tuple[int, ...]  # (2, 0): the first child of the third child of node 0
Width = Callable[[Writing, Ranks], int]
Draw = Callable[[Writing, Sequence[int], Tensor, int], Children]  # path, row (V,), count


def stacked(laws: Sequence[Tensor]) -> Tensor | None:
    """Laws (N, V) of a tree from those of its nodes but node 0; None without any."""
    return torch.stack([torch.zeros_like(laws[0]), *laws]) if laws else None


@dataclass(slots=True)
class Bush:
    """The tree that one draft grows for one request."""

    request: Writing
    room: int  # tokens that may be drafted one after another
    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    laws: list[Tensor] = field(default_factory=list)
    scores: list[float] = field(default_factory=lambda: [1.0])
    leaves: dict[int, Ranks] = field(default_factory=lambda: {0: ()})  # that get children next
    ran: int = 0

    def tree(self) -> TokenTree:
        return TokenTree(self.tokens, self.parents, stacked(self.laws), self.scores)


def grown(draft: Beside, requests: Sequence[Writing], width: Width, draw: Draw) -> list[TokenTree]:
    """A tree for each request: its node at `ranks` gets width(request, ranks) children by `draw`.

    The draft runs the nodes that get children, and their siblings; the last level it does not run.
    """
    bushes = []
    for request, ready in zip(requests, draft.catch_up(requests), strict=True):
        bushes.append(Bush(request, draft.room(request) if ready else 0, request.tokens[-1:]))
    while growing := [bush for bush in bushes if _wanted(bush, width)]:
        for bush, (tree, output) in passed(growing, partial(_run, draft), _stop):
            draft.ran(bush.request, tree)
            try:
                _extend(bush, tree, output.logits, width, draw)
            except Exception as error:  # of a row, or of a rule from outside: this request's alone
                _stop(bush, error)
    return [bush.tree() for bush in bushes]


def _run(draft: Beside, growing: Sequence[Bush]) -> list[tuple[TokenTree, Output]]:
    trees = [TokenTree(list(bush.tokens), list(bush.parents)) for bush in growing]
    work = [
        draft.work(bush.request, tree, bush.ran) for bush, tree in zip(growing, trees, strict=True)
    ]
    return list(zip(trees, draft.runner.forward(work), strict=True))


def _stop(bush: Bush, error: Exception) -> None:
    bush.room = 0
    bush.request.stop_drafting(error)


def _wanted(bush: Bush, width: Width) -> bool:
    deepest = max(map(len, bush.leaves.values()), default=0)
    return deepest < bush.room and any(width(bush.request, r) for r in bush.leaves.values())


def _extend(bush: Bush, tree: TokenTree, logits: Tensor, width: Width, draw: Draw) -> None:
    """Children for the leaves; rows of `logits` are those of the nodes from `bush.ran` on."""
    leaves, bush.leaves = bush.leaves, {}
    for leaf, ranks in leaves.items():
        if not (count := width(bush.request, ranks)):
            continue
        row = logits[leaf - bush.ran]
        ids, shares, laws = draw(bush.request, tree.path_tokens(leaf), row, count)
        for rank in range(len(ids)):
            bush.leaves[len(bush.tokens) + rank] = (*ranks, rank)
        bush.tokens += ids
        bush.parents += [leaf] * len(ids)
        bush.laws += laws
        bush.scores += [bush.scores[leaf] * share for share in shares]
    bush.ran = len(tree)
