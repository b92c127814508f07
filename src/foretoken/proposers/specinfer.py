"""SpecInfer: several drafts at once, each of which grows a tree, in one token tree.

Under the coupled rule the trees are merged. Under the rejection rule every draft's children of a
node are drawn independently and stand one after another, duplicates included, with the laws they
were drawn from (multi-step speculative sampling). Miao et al. 2023 (arXiv 2305.09781, sections 3
and 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foretoken import sampling
from foretoken.proposers.beside import Beside
from foretoken.proposers.growing import race, stacked
from foretoken.request import Request
from foretoken.runners.base import Target
from foretoken.tree import TokenTree, merge

EXPANSION = (1, 1, 3, 1, 1, 1, 1, 1)  # the paper's default


@dataclass(slots=True)
class Bush:
    """The tree that one draft grows for one request."""

    request: Request
    depth: int  # tokens that may be drafted one after another
    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    laws: list[Tensor] = field(default_factory=list)
    scores: list[float] = field(default_factory=lambda: [1.0])
    leaves: list[int] = field(default_factory=lambda: [0])
    ran: int = 0

    def tree(self) -> TokenTree:
        return TokenTree(self.tokens, self.parents, stacked(self.laws), self.scores)


class SpecInfer:
    """Drafts with several models: hub ids, folders or loaded transformers models.

    expansion: children of every leaf at each depth, for all drafts, or one tuple for each draft.
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self, models: Sequence[Any], expansion: Sequence[int] | Sequence[Sequence[int]] = EXPANSION
    ) -> None:
        self.models = list(models)
        if not self.models:
            raise ValueError("SpecInfer needs at least one draft")
        several = bool(expansion) and isinstance(expansion[0], Sequence)
        each: list[Any] = list(expansion) if several else [expansion] * len(self.models)
        if len(each) != len(self.models):
            raise ValueError(f"{len(each)} expansions for {len(self.models)} drafts: give one each")
        self.expansions = [tuple(map(int, one)) for one in each]
        if not all(one and min(one) >= 1 for one in self.expansions):
            raise ValueError("an expansion holds the children of a leaf by depth, each 1 or more")

    def bind(self, target: Target) -> None:
        self.drafts = [Beside(target.load(model), target) for model in self.models]
        self.vocabulary = target.vocabulary

    def release(self, request: Request) -> None:
        for draft in self.drafts:
            draft.release(request)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        grown = [self._grown(number, requests) for number in range(len(self.drafts))]
        return [_joined([bush.tree() for bush in bushes]) for bushes in zip(*grown, strict=True)]

    def _grown(self, number: int, requests: Sequence[Request]) -> list[Bush]:
        """The trees of one draft; it runs all but their leaves."""
        draft, expansion = self.drafts[number], self.expansions[number]
        bushes = []
        for request in requests:
            depth = min(len(expansion), draft.room(request)) if draft.catch_up(request) else 0
            bushes.append(Bush(request, depth, request.tokens[-1:]))
        for depth, count in enumerate(expansion):
            if not (growing := [bush for bush in bushes if bush.depth > depth]):
                break
            trees = [TokenTree(list(bush.tokens), list(bush.parents)) for bush in growing]
            outputs = draft.runner.forward(
                [
                    draft.work(bush.request, tree, bush.ran)
                    for bush, tree in zip(growing, trees, strict=True)
                ]
            )
            for bush, tree, output in zip(growing, trees, outputs, strict=True):
                draft.ran(bush.request, tree)
                self._extend(number, bush, tree, output.logits, count)
        return bushes

    def _extend(self, number: int, bush: Bush, tree: TokenTree, logits: Tensor, count: int) -> None:
        """Children for every leaf; rows of `logits` are those of the nodes from `bush.ran` on."""
        leaves, bush.leaves = bush.leaves, []
        for leaf in leaves:
            row = logits[leaf - bush.ran][: self.vocabulary]
            try:
                ids, shares, laws = self._children(number, bush, tree.path_tokens(leaf), row, count)
            except sampling.NoCandidate as error:
                bush.request.stop_drafting(error)
                bush.depth = 0
                continue
            bush.leaves += range(len(bush.tokens), len(bush.tokens) + len(ids))
            bush.tokens += ids
            bush.parents += [leaf] * len(ids)
            bush.laws += laws
            bush.scores += [bush.scores[leaf] * share for share in shares]
        bush.ran = len(tree)

    def _children(
        self, number: int, bush: Bush, path: Sequence[int], row: Tensor, count: int
    ) -> tuple[list[int], list[float], list[Tensor]]:
        request = bush.request
        if request.rule != "rejection" or request.params.temperature == 0:
            return race(request, path, row, count)
        law = sampling.law(row, request.params, request.history, path).cpu()
        law = torch.nn.functional.pad(law, (0, self.vocabulary - len(law)))
        ids = [sampling.draw(law, request.generator(number)) for _ in range(count)]
        return ids, [float(law[token]) for token in ids], [law] * count


def _joined(trees: Sequence[TokenTree]) -> TokenTree:
    """One tree: merged, or with laws, each draft's nodes after those of the one before."""
    if not any(tree.laws is not None for tree in trees):
        return merge(trees)
    tokens, parents, laws = [trees[0].tokens[0]], [-1], list[Tensor]()
    for tree in trees:
        shift = len(tokens) - 1
        tokens += tree.tokens[1:]
        parents += [parent + shift if parent else 0 for parent in tree.parents[1:]]
        laws += list(tree.laws[1:]) if tree.laws is not None else []
    return TokenTree(tokens, parents, stacked(laws))
