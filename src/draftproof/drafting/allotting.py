"""Which of the offered nodes a step runs.

The nodes of all requests compete in one list, best first, against what each row more costs. A
child is never likelier than its parent, so the best of them are always whole trees. What a text may
lose is not staked at once: one that has lost it all waits some fifty steps, so each step risks a
part of it, and what is risked is a node's cost by the chance that it is in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_double, c_int32, c_void_p

from draftproof.drafting.looks import Looks, natively
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import SAFELY, Price
from draftproof.drafting.structures import Worth
from draftproof.drafting.text import Text

MOST = (1 << 31) - 1  # nodes of any number


def allot(
    offers: Sequence[Offer],
    lengths: Sequence[int],
    lefts: Sequence[float],
    bets: Sequence[float],
    price: Price,
    left: float,
) -> tuple[list[list[int]], list[float]]:
    """The nodes of each offer that the step runs, node 0 first; what each is expected to bring.

    That is in passes over one row, its part of the cost taken off.

    lengths: tokens that a row of each attends to. lefts: what each may cost more than a plain step.
    bets: how much of that may be expected to be in vain. left: what all of them may cost together.
    """
    listed: list[tuple[float, int, int]] = []
    survivals = [offer.survivals() for offer in offers]
    for number, (offer, length) in enumerate(zip(offers, lengths, strict=True)):
        row, weight = price.rate * price.attention * length, offer.weight
        listed += [
            (row - weight * chance, number, node)
            for node, chance in enumerate(survivals[number])
            if node and weight * chance > row
        ]
    kept, brings = [[0] for _ in offers], [0.0] * len(offers)
    if not listed:
        return kept, brings
    listed.sort()
    worth, risk, best, count = 0.0, 0.0, 0.0, 0
    own_cost = price.curve[min(price.rows, len(price.curve) - 1)]
    # More rows than the texts can pay for together would make each too dear for all of them.
    affordable = min(left, sum([left for left in lefts if left > 0]))
    risked = sum([bet for bet in bets if bet > 0])
    costs = price.curve[price.rows + 1 :][: price.room]  # with 1, 2, ... nodes more
    for at, ((less, number, node), cost) in enumerate(zip(listed, costs, strict=False), 1):
        worth -= less
        risk += 1 - survivals[number][node]
        gain, likely = worth - SAFELY * price.rate * (cost - own_cost), price.likely(at)
        if gain > best and likely <= affordable and likely * risk <= risked * at:
            best, count = gain, at
    if not count:
        return kept, brings
    each, risks = price.likely(count) / count, [0.0] * len(offers)
    for less, number, node in listed[:count]:
        own, cost = kept[number], max(each + price.attention * lengths[number], 1e-9)
        risk = risks[number] + cost * (1 - survivals[number][node])
        if len(own) <= min(offers[number].limit, lefts[number] / cost) and risk <= bets[number]:
            own.append(node)
            risks[number] = risk
            brings[number] -= less / price.rate + each
    return [sorted(own) for own in kept], brings


class Allotting:
    """As `allot`, natively in one call. Keeps the curves of costs as native code reads them."""

    def __init__(self) -> None:
        self._curves: list[tuple[Sequence[float], Array[c_double]]] = []

    def allot(
        self,
        texts: Sequence[Text],
        looks: Sequence[Looks],
        lefts: Sequence[float],
        bets: Sequence[float],
        price: Price,
        left: float,
    ) -> tuple[list[list[int]], list[float]] | None:
        """Of what was drafted; None: there is no memory for it."""
        count, curve = len(texts), self._curve(price.curve)
        known = self._curve(price.known or price.curve)
        limits = [text.request.params.max_draft_nodes for text in texts]
        worth = Worth(price.rate, price.attention, left, addressof(curve), addressof(known))
        worth.most, worth.rows = len(curve) - 1, price.rows
        worth.room = -1 if price.room is None else price.room
        kept = (c_int32 * sum([each.merged.nodes for each in looks]))()
        counts, brings = (c_int32 * count)(), (c_double * count)()
        done = natively().dp_allot(
            (c_void_p * count)(*[each.merged.address for each in looks]),
            *(count, byref(worth)),
            (c_double * count)(*[text.step.weight for text in texts]),
            (c_double * count)(*[text.length for text in texts]),
            (c_double * count)(*lefts),
            (c_double * count)(*bets),
            (c_int32 * count)(*[MOST if each is None else min(each, MOST) for each in limits]),
            *(kept, counts, brings),
        )
        if done < 0:
            return None
        nodes, at, found = kept[: sum(counts)], 0, list[list[int]]()
        for many in counts:
            found.append(nodes[at : at + many])
            at += many
        return found, brings[:]

    def _curve(self, costs: Sequence[float]) -> Array[c_double]:
        """The same, for native code: most steps reckon with the curves of the one before."""
        for known, given in self._curves:
            if known is costs:
                return given
        made = (c_double * len(costs))(*costs)
        self._curves = [*self._curves[-1:], (costs, made)]
        return made
