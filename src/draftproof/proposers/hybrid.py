"""Several methods at once: their trees are merged by (parent, token), the likeliest nodes kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from torch import Tensor

from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter, Proposer
from draftproof.drafting.together import passed
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree, merge
from draftproof.writing import Writing

UNKNOWN = 0.5  # chance of a token, given its parent, of a part that tells no scores


class Hybrid(Drafter):
    """What any of its parts proposes. Its trees carry no laws: one-hot is exact.

    parts: proposers, or names of methods that need nothing, such as "ngram". max_nodes: tokens of
    a tree, node 0 included; of more, those of the largest scores are kept, each with all that
    stands before it. None: all.
    """

    name = "hybrid"

    def __init__(self, parts: Sequence[Proposer | str], max_nodes: int | None = None) -> None:
        if not parts:
            raise ValueError("a hybrid needs at least one part")
        if max_nodes is not None and max_nodes < 2:
            raise ValueError(f"max_nodes={max_nodes} leaves nothing to draft: use 2 or more")
        self.max_nodes = max_nodes
        self.given: Sequence[Proposer | str] = parts
        self._use([part for part in parts if not isinstance(part, str)])

    def merge(self, parts: Sequence[Proposer]) -> None:
        """Merge the trees of these: what was given, with proposers in place of names."""
        self.given = parts
        self._use(parts)

    def _use(self, parts: Sequence[Proposer]) -> None:
        self.parts = [adopt(part) for part in parts]
        self.taps = tuple(sorted({tap for part in self.parts for tap in part.taps}))
        self.wants_best = any(part.wants_best for part in self.parts)
        self.observes = any(part.observes for part in self.parts)

    def bind(self, target: Target, load: Load) -> None:
        for part in self.given:
            if isinstance(part, str):  # inside of another proposer, where nobody looks for names
                raise ValueError(f"a hybrid in another method takes no names: replace {part!r}")
        for part in self.parts:
            part.bind(target, load)

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        for part in self.parts:
            if part.observes:
                part.observe(request, position, hidden)

    def read_along(self, requests: Sequence[Writing]) -> None:
        for part in self.parts:
            part.read_along(requests)

    def release(self, request: Writing) -> None:
        with ExitStack() as all_parts:  # the others too where one fails
            for part in self.parts:
                all_parts.callback(part.release, request)

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        trees = {request.key: list[TokenTree]() for request in requests}
        for part in self.parts:
            going = [request for request in requests if not request.plain]
            for request, tree in passed(going, part.propose, Writing.stop_drafting):
                try:
                    tree.check(request.tokens[-1], None)
                except ValueError as error:
                    request.stop_drafting(error)
                trees[request.key].append(_scored(tree))
        return [self._merged(request, trees[request.key]) for request in requests]

    def _merged(self, request: Writing, trees: Sequence[TokenTree]) -> TokenTree:
        if request.plain:  # a part failed: what the others hold of it is of no use
            self.release(request)
            return TokenTree.chain(request.tokens[-1:])
        tree = merge(trees)
        return tree if self.max_nodes is None else tree.best(self.max_nodes)


def _scored(tree: TokenTree) -> TokenTree:
    if tree.scores is not None:
        return tree
    return replace(tree, scores=[UNKNOWN**depth for depth in tree.depths])
