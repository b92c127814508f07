"""Which nodes of native offers a step runs: `price.allot` in one call, with the same result."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_double, c_int32, c_void_p

from draftproof.drafting.looks import Looks, natively
from draftproof.drafting.price import Price
from draftproof.drafting.structures import Worth
from draftproof.drafting.text import Text

MOST = (1 << 31) - 1  # nodes of any number


class Allotting:
    """Keeps the curves of costs as native code reads them."""

    def __init__(self) -> None:
        self._curves: list[tuple[Sequence[float], Array[c_double]]] = []

    def allot(
        self,
        texts: Sequence[Text],
        looks: Sequence[Looks],
        lefts: Sequence[float],
        price: Price,
        left: float,
    ) -> tuple[list[list[int]], list[float]] | None:
        """As `price.allot`, of what was drafted; None: there is no memory for it."""
        count, curve, known = len(texts), self._curve(price.curve), self._curve(price.known)
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
