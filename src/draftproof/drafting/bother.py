"""What it takes to ask sources for drafts, whatever they offer.

Some of it is taken however many texts are asked for, so they are asked together or not at all.
"""

from __future__ import annotations

from draftproof.drafting.account import ADVANCE, LATELY
from draftproof.drafting.glancing import Glances
from draftproof.drafting.price import Price
from draftproof.drafting.text import Text

EACH = 0.02  # passes over one row that asking for a text takes, before it is known


class Bother:
    """In passes over one row, of late. each: for a text; once: for however many are asked."""

    def __init__(self, glances: Glances) -> None:
        self.glances, self.each, self.once = glances, EACH, 0.0

    def took(self, once: float, each: float) -> None:
        """Asking took so long for all texts, glances of this step among it, and for each."""
        self.once = _lately(self.once, once - self.glances.spent)
        self.each = _lately(self.each, each)

    def share(self, texts: int) -> float:
        """What each of so many texts takes."""
        return self.each + self.once / max(texts, 1)

    def least(self, price: Price, texts: int) -> float:
        """What each of so many texts takes with one node that runs: a draft without is no use."""
        return self.share(texts) + self.glances.drafting + price.likely(1)

    def needs(self, price: Price, texts: int) -> float:
        """What so many texts take together, with a node of each."""
        return self.once + texts * (self.each + self.glances.drafting) + price.likely(texts)

    def affordable(self, texts: list[Text], price: Price) -> list[Text]:
        """Those that bring most, as many as can be paid for: nobody is asked in vain."""
        if len(texts) == 1 or self.needs(price, len(texts)) <= price.left:
            return texts
        payable = [n for n in range(1, len(texts)) if self.needs(price, n) <= price.left]
        count = max(payable, default=1)
        best = {id(text) for text in sorted(texts, key=lambda text: -text.hopes)[:count]}
        return [text for text in texts if id(text) in best]


def _lately(known: float, took: float) -> float:
    """What something takes of late.

    What stalled it, as a collection of garbage does, is no part of the next: else one stall of some
    hundred passes would end all asking, and with it all that could tell of a shorter one.
    """
    return known + (min(took, max(4 * known, ADVANCE)) - known) * LATELY
