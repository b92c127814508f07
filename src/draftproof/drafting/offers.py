"""What all sources offer a step, and which of it the step runs.

The nodes of all requests compete in one list, best first, against what each row more costs. A
child is never likelier than its parent, so the best of them are always whole trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.tree import TokenTree

SURE = 0.87  # that a token of a draft is right, where many are in a row
HOPELESS = 0.02  # chance below which nothing behind a node is looked at
AGREEING = 0.5  # of what is missing to certainty, that a second source's word adds


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
    _where: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = [self.root]

    def add(self, source: int, tree: TokenTree, chances: Sequence[float]) -> None:
        """A source's tree; chances: of its nodes, given their parents."""
        nodes = [0]
        for at in range(1, len(chances)):
            parent = nodes[tree.parents[at]] if chances[at] else -1
            if parent < 0 or self.depths[parent] >= self.depth:
                nodes.append(-1)
                continue
            key = parent, tree.tokens[at]
            node = self._where.get(key)
            if node is None:
                node = self._where[key] = len(self.tokens)
                self.tokens.append(tree.tokens[at])
                self.parents.append(parent)
                self.chances.append(chances[at])
                self.owners.append(source)
                self.depths.append(self.depths[parent] + 1)
            elif self.owners[node] != source:
                low, high = sorted((self.chances[node], chances[at]))
                self.chances[node] = high + AGREEING * low * (1 - high)
            nodes.append(node)

    def survivals(self) -> list[float]:
        """That a node and all before it are written."""
        found = [1.0]
        for parent, chance in zip(self.parents[1:], self.chances[1:], strict=True):
            found.append(found[parent] * chance)
        return found

    def reached(self) -> list[float]:
        """[d]: the chance of the likeliest node d deep."""
        best = [0.0] * (max(self.depths) + 1)
        for depth, chance in zip(self.depths, self.survivals(), strict=True):
            best[depth] = max(best[depth], chance)
        return best

    def tree(self, kept: Sequence[int]) -> TokenTree:
        """Of the nodes `kept`, ascending, node 0 and every parent among them."""
        new = {-1: -1} | {old: at for at, old in enumerate(kept)}
        return TokenTree(
            [self.tokens[node] for node in kept], [new[self.parents[node]] for node in kept]
        )


@dataclass(frozen=True, slots=True)
class Price:
    """What time is worth, and what a step costs, in passes over one row.

    rate: tokens in the time of such a pass. rows: of the pass without drafts. curve: cost of a pass
    by its rows. unit: of a plain step. attention: of a row, for each token that it attends to.
    left: what the step may cost more than a plain one.
    """

    rate: float
    rows: int
    curve: Sequence[float]
    unit: float = 1.0
    attention: float = 0.0
    left: float = math.inf
    _least: float = field(init=False)

    def __post_init__(self) -> None:
        cheapest = min(self.extra(1), self.extra(8) / 8)
        object.__setattr__(self, "_least", max(HOPELESS, self.rate * cheapest / 2))

    @property
    def least(self) -> float:
        """A chance below which no node can pay, whatever else runs; of a weight of at most 2."""
        return self._least

    @property
    def useful(self) -> int:
        """Nodes of one draft that can pay, each as sure as drafts ever are."""
        return 1 + int(math.log(self._least) / math.log(SURE))

    def extra(self, nodes: int) -> float:
        """What so many rows more cost, attention left out."""
        most = len(self.curve) - 1
        last = min(self.rows + nodes, most)
        beyond = (self.rows + nodes - last) * self.curve[most] / most
        return self.curve[last] - self.curve[min(self.rows, most)] + beyond


def allot(
    offers: Sequence[Offer],
    lengths: Sequence[int],
    lefts: Sequence[float],
    price: Price,
    took: float = 0.0,
) -> tuple[list[list[int]], list[float]]:
    """The nodes of each offer that the step runs, node 0 first; what each is expected to bring.

    That is in passes over one row, its part of the cost taken off.

    lengths: tokens that a row of each attends to. lefts: what each may cost more than a plain step.
    took: what drafting took of what all of them may.
    """
    listed: list[tuple[float, int, int]] = []
    for number, (offer, length) in enumerate(zip(offers, lengths, strict=True)):
        row = price.rate * price.attention * length
        for node, chance in enumerate(offer.survivals()):
            worth = offer.weight * chance - row
            if node and worth > 0:
                listed.append((-worth, number, node))
    kept, brings = [[0] for _ in offers], [0.0] * len(offers)
    if not listed:
        return kept, brings
    listed.sort()
    space = max(0, len(price.curve) - 1 - price.rows)
    worth, best, count = 0.0, 0.0, 0
    for at, (less, _, _) in enumerate(listed[:space], 1):
        worth -= less
        gain = worth - price.rate * price.extra(at)
        if gain > best and price.extra(at) + took <= price.left:
            best, count = gain, at
    if not count:
        return kept, brings
    each = price.extra(count) / count
    for less, number, node in listed[:count]:
        own = kept[number]
        cost = each + price.attention * lengths[number]
        if len(own) <= min(offers[number].limit, lefts[number] / max(cost, 1e-9)):
            own.append(node)
            brings[number] -= less / price.rate + each
    return [sorted(own) for own in kept], brings
