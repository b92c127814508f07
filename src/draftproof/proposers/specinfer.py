"""SpecInfer: several drafts at once, each of which grows a tree, in one token tree.

Under the coupled rule the trees are merged. Under the rejection rule every draft's children of a
node are drawn independently and stand one after another, duplicates included, with the laws they
were drawn from (multi-step speculative sampling). Miao et al. 2023 (arXiv 2305.09781, sections 3
and 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from draftproof.drafting.base import Drafter
from draftproof.drafting.beside import Beside
from draftproof.drafting.growing import grow_beside
from draftproof.drafting.growth import Growth, Ranks, Shape, stacked
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree, merge
from draftproof.writing import Children, Writing

EXPANSION = (1, 1, 3, 1, 1, 1, 1, 1)  # the paper's default


class SpecInfer(Drafter):
    """Drafts with several models, or one: hub ids, folders or loaded transformers models.

    expansion: children of every leaf at each depth, for all drafts, or one tuple for each draft.
    """

    name = "specinfer"
    drafting_cost = 1.2

    def __init__(
        self, models: Any, expansion: Sequence[int] | Sequence[Sequence[int]] = EXPANSION
    ) -> None:
        # A name is a sequence too, of letters.
        one = isinstance(models, str | Path) or not isinstance(models, Iterable)
        self.models: list[Any] = [models] if one else list(models)
        if not self.models:
            raise ValueError("SpecInfer needs at least one draft")
        several = bool(expansion) and isinstance(expansion[0], Sequence)
        each: list[Any] = list(expansion) if several else [expansion] * len(self.models)
        if len(each) != len(self.models):
            raise ValueError(f"{len(each)} expansions for {len(self.models)} drafts: give one each")
        self.expansions = [tuple(map(int, one)) for one in each]
        if not all(one and min(one) >= 1 for one in self.expansions):
            raise ValueError("an expansion holds the children of a leaf by depth, each 1 or more")

    def bind(self, target: Target, load: Load) -> None:
        self.drafts = [Beside(load(target, model), target) for model in self.models]
        self.vocabulary = target.vocabulary

    def read_along(self, requests: Sequence[Writing]) -> None:
        for draft in self.drafts:
            draft.catch_up(requests, ahead=True)

    def release(self, request: Writing) -> None:
        for draft in self.drafts:
            draft.release(request)

    def close(self) -> None:
        for draft in self.drafts:
            draft.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        proposed = []
        for number, (draft, expansion) in enumerate(zip(self.drafts, self.expansions, strict=True)):
            shape = Shape(partial(_width, expansion), len(expansion))
            draw = partial(self._draw, number)
            proposed.append(grow_beside(draft, requests, [shape] * len(requests), draw))
        return [_joined(trees) for trees in zip(*proposed, strict=True)]

    def _draw(
        self, number: int, growth: Growth, path: Sequence[int], row: Tensor, count: int
    ) -> Children:
        request, size = growth.request, self.vocabulary
        return request.rule.children(
            request, path, row, count, size, stream=number, independent=True
        )


def _width(expansion: Sequence[int], ranks: Ranks) -> int:
    return expansion[len(ranks)] if len(ranks) < len(expansion) else 0


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
