"""A step is planned: what is offered, which of the offered nodes run, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting import dear
from draftproof.drafting.allotting import Allotting, allot
from draftproof.drafting.asking import Asking
from draftproof.drafting.looks import Looks
from draftproof.drafting.lookups import LookUps
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.resting import Rests
from draftproof.drafting.settling import planned
from draftproof.drafting.telling import tell
from draftproof.drafting.text import Text
from draftproof.drafting.weights import reason
from draftproof.tree import TokenTree

BET = 0.06  # of what a text may lose, what a step may be expected to


class Planning:
    """Plans for texts that no tree can change; natively where all that is offered is."""

    def __init__(self, asking: Asking, lookups: LookUps, rests: Rests) -> None:
        self.sources, self.asking, self.lookups, self.rests = asking.sources, asking, lookups, rests
        self.allotting = Allotting()

    def plan(
        self,
        texts: Sequence[Text],
        price: Price,
        trees: dict[int, TokenTree],
        one: float,
    ) -> tuple[float, float]:
        """A tree for each text into `trees`; what drafting and running them cost."""
        bother = self.rests.bother.share(len(texts))
        for text in texts:
            text.spent = bother
        looks, took = self._offered(texts, price, one)
        lefts, bets, one_row, most = list[float](), list[float](), price.likely(1), 0.0
        for text in texts:
            # One that seemed worth asking for was asked because a node can be paid for: that
            # drafting took longer changes nothing.
            row = one_row + price.attention * text.length if text.promising else 0.0
            may_lose, most = text.left, max(most, row)
            lefts.append(max(may_lose, row))
            # As much as drafting took may be lost too: it was worth that.
            bets.append(max(BET * may_lose, text.spent - bother, row))
        left = max(price.left - took, most)
        found = self.allotting.allot(texts, looks, lefts, bets, price, left) if looks else None
        if found is None:
            offers = [offered(text) for text in texts]
            found = allot(offers, [text.length for text in texts], lefts, bets, price, left)
        kept, brings = found
        for text, own in zip(texts, kept, strict=True):
            text.step.kept = own
        ran = rows(texts, price)
        unglanced = dear.unglanced(self.sources)
        for text, own, brought, each in zip(texts, kept, brings, ran, strict=True):
            step = text.step
            text.asked(brought - text.spent + bother, self.rests.glances.cost)
            text.full = dear.next_look(unglanced, text, price, bother)
            step.extra = text.spent + each
            if len(own) == 1:
                step.why = reason(text)
            trees[text.request.key] = planned(text, self.sources)
            tell(text, self.sources, one)
        return took, sum(ran) + bother * len(texts)

    def _offered(
        self, texts: Sequence[Text], price: Price, one: float
    ) -> tuple[Sequence[Looks] | None, float]:
        """Looks natively at all that is offered, or None; what drafting took."""
        useful = min(price.useful, max([text.deep for text in texts]))
        for source in self.sources:
            source.drafter.useful = useful
        looks, took = self.lookups.of(texts), None
        if looks is not None:
            took = self.lookups.draft(texts, looks, useful, price.least, one)
        if took is None:
            looks, offers = None, [offered(text) for text in texts]
            took = self.asking.free(texts, offers, price, one)
        if self._dear(texts):
            offers = [offered(text) for text in texts]
            took, more = self.asking.dear(texts, offers, price, one, took)
            looks = None if more else looks
        return looks, took

    def _dear(self, texts: Sequence[Text]) -> bool:
        """Whether a dear source may draft for any of them: else none need Python's offers."""
        dear_ones = [
            (number, source.name)
            for number, source in enumerate(self.sources)
            if dear.may_try(source)
        ]
        return any([text.may_ask(*each) for each in dear_ones for text in texts])


def rows(texts: Sequence[Text], price: Price) -> list[float]:
    """What it costs to run the nodes that were kept of each text, node 0 left out."""
    counts = [len(text.step.kept) - 1 for text in texts]
    row = price.likely(sum(counts)) / max(sum(counts), 1)
    each = zip(counts, texts, strict=True)
    return [count * (row + price.attention * text.length) for count, text in each]


def offered(text: Text) -> Offer:
    """What a text is offered in this step, as Python's: made where it is looked at."""
    step = text.step
    if step.offer is None:
        step.offer = Offer.to(text.request, step.weight, step.looks)
    return step.offer
