"""How deep a draft grows: by another level where that is expected to bring what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.base import Partial
from draftproof.drafting.calibration import conditional
from draftproof.drafting.growth import levels
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text

RESERVE = 0.03  # of what a text may lose, kept for rows that cost more than is thought

Chosen = dict[int, tuple[Text, Offer]]  # by key


class Deepening:
    """Says before each level of a source's drafts which texts get it. levels: at most, or None."""

    def __init__(
        self, number: int, source: Source, found: Chosen, price: Price, levels: int | None
    ) -> None:
        self.number, self.source, self.found = number, source, found
        self.price, self.levels = price, levels
        self.level = 0  # the next one, of the deepest draft
        self._survivals = {key: [1.0] for key in found}
        self._depths = {key: [0] for key in found}

    def __call__(self, growths: Sequence[Partial]) -> list[bool]:
        self.level = 1 + max(map(levels, growths))
        if self.level == 1:
            return [True] * len(growths)
        rate, drafting = self.price.rate, self.source.asking.of(self.level)
        # Of what a text may lose its rows are paid too.
        spent = drafting / len(growths) + self.price.likely(self.level) + RESERVE
        if self.levels is not None:
            able = self.level <= self.levels and drafting <= self.price.left
            return [able and self.found[each.request.key][0].left > spent for each in growths]
        gains = [self._gain(growth) for growth in growths]
        pays = sum([gain for gain in gains if gain > 0]) > rate * self.source.further
        cost = drafting + self.price.likely(self.level * len(growths))
        if not pays or cost > self.price.left:
            return [False] * len(growths)
        return [
            gain > 0 and self.found[growth.request.key][0].left > spent
            for gain, growth in zip(gains, growths, strict=True)
        ]

    def _gain(self, growth: Partial) -> float:
        """What one level more is expected to bring, its rows paid."""
        text, offer = self.found[growth.request.key]
        known, depths = self._survivals[growth.request.key], self._depths[growth.request.key]
        recent, last = text.recent[self.number], len(known)
        for node in range(last, len(growth.tokens)):
            parent = growth.parents[node]
            depths.append(depths[parent] + 1)
            score = conditional(growth.parents, growth.scores, node)
            chance = self.source.chance(growth.request, score, depths[node], recent)
            known.append(known[parent] * chance)
        depth = depths[-1]  # of a staged draft a call may be several levels further
        tips = [at for at in range(last, len(known)) if depths[at] == depth]
        survival = max([known[tip] for tip in tips], default=0.0)
        return gain(self.source, recent, text, offer, survival, depth + 1, self.price)


def gain(
    source: Source,
    recent: float,
    text: Text,
    offer: Offer,
    survival: float,
    depth: int,
    price: Price,
) -> float:
    """Of a token at this depth, if those before it are right with that chance."""
    reached = offer.reached()
    there = reached[depth] if depth < len(reached) else 0.0
    chance = survival * source.expected(depth, recent)
    row = price.extra(depth) - price.extra(depth - 1) + price.attention * text.length
    return offer.weight * max(0.0, chance - there) - price.rate * row
