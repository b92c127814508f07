"""What all sources offer a text in a step: their trees merged, and the chance of each node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting.looks import Looks
from draftproof.tree import TokenTree
from draftproof.writing import Writing


@dataclass(slots=True)
class Offer:
    """The merged trees of one request; node 0 is its last token.

    chances: of each node, given its parent. owners: the source, by number, that offered it first.
    """

    root: int
    depth: int  # that a tree may have, as many tokens as the text has room for
    limit: int  # nodes besides node 0 that it may run
    weight: float = 1.0  # of its tokens among those of the others
    tokens: list[int] = field(init=False)
    parents: list[int] = field(default_factory=lambda: [-1])
    chances: list[float] = field(default_factory=lambda: [1.0])
    owners: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    _reached: list[float] | None = None
    _where: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = [self.root]

    @classmethod
    def to(cls, request: Writing, weight: float, looks: Looks | None = None) -> Offer:
        """With as much room as a request has, and as it allows; what native code offers it."""
        most = request.params.max_draft_nodes
        room, limit = request.room - 1, sys.maxsize if most is None else most
        offer = cls(request.tokens[-1], room, limit, weight)
        if looks is not None:
            found = looks.merged.taken()
            offer.tokens, offer.parents, offer.owners, offer.depths, offer.chances = found
            offer.tokens[0] = offer.root
        return offer

    def add(self, source: int, tree: TokenTree, chances: Sequence[float], yields: int = -1) -> None:
        """A source's tree; chances: of its nodes, given their parents.

        yields: the source beside whose tokens it adds none. A token that two offer is as likely as
        the one says that is surer: they saw the same text.
        """
        self._reached = None
        depths, tokens, where, nodes = self.depths, self.tokens, self._where, [0]
        if len(where) < len(tokens) - 1:  # merged elsewhere
            where.update(
                zip(zip(self.parents, tokens, strict=True), range(len(tokens)), strict=True)
            )
        owned = zip(self.parents, self.owners, strict=True)
        taken = {parent for parent, owner in owned if owner == yields}
        each = zip(tree.parents, tree.tokens, chances, strict=False)
        next(each)  # node 0
        for before, token, chance in each:
            parent = nodes[before] if chance else -1
            if parent < 0 or depths[parent] >= self.depth:
                nodes.append(-1)
                continue
            fresh = len(tokens)
            node = where.get((parent, token), fresh)
            if node == fresh and parent in taken:
                nodes.append(-1)
                continue
            if node == fresh:
                where[parent, token] = fresh
                tokens.append(token)
                self.parents.append(parent)
                self.chances.append(chance)
                self.owners.append(source)
                depths.append(depths[parent] + 1)
            elif self.owners[node] != source:
                self.chances[node] = max(self.chances[node], chance)
            nodes.append(node)

    def survivals(self) -> list[float]:
        """That a node and all before it are written."""
        found = [1.0]
        for parent, chance in zip(self.parents[1:], self.chances[1:], strict=True):
            found.append(found[parent] * chance)
        return found

    def reached(self) -> list[float]:
        """[d]: the chance of the likeliest node d deep."""
        if self._reached is None:
            self._reached = [0.0] * (max(self.depths) + 1)
            for depth, chance in zip(self.depths, self.survivals(), strict=True):
                self._reached[depth] = max(self._reached[depth], chance)
        return self._reached

    def tree(self, kept: Sequence[int], scored: bool = False) -> TokenTree:
        """Of the nodes `kept`, ascending, node 0 and every parent among them.

        scored: with their survivals.
        """
        survivals = self.survivals() if scored else None
        return TokenTree.of(kept, self.root, self.tokens, self.parents, survivals)
