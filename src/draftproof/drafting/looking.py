"""Which texts of a batch native code can glance at, and by which look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_double, sizeof

from draftproof.drafting.looks import Looks, LookUp, Together, looks_natively
from draftproof.drafting.price import SAFELY, Price
from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text


class Looking:
    """numbers: of the sources that can be glanced at, of which those that yield to others come last
    where they draft together.
    """

    def __init__(self, sources: Sequence[Source], numbers: Sequence[int]) -> None:
        self.sources, self.yields = sources, yields(sources)
        self.numbers = sorted(numbers, key=self.yields.__getitem__)
        self.native: dict[int, LookUp] = {}
        for number in self.numbers if looks_natively() else ():
            if isinstance(drafter := sources[number].drafter, LookUp):
                self.native[number] = drafter

    def together(self, texts: Sequence[Text], price: Price, each: float) -> Together | None:
        """The texts, where native code can look at all of them."""
        if not self.native or not all([self.sources[number].free for number in self.native]):
            return None
        looks = self.all(texts)
        worth = [text.step.weight for text in texts]
        row = SAFELY * price.rate * price.attention
        rows = [price.row + row * text.length for text in texts]
        requests = [text.request for text in texts]
        found = [(request, each) for request, each in zip(requests, looks, strict=True) if each]
        if len(found) < len(texts):
            return None
        return Together(found, worth, rows, price.rate * each)

    def all(self, texts: Sequence[Text]) -> list[Looks | None]:
        """Of each text; None where it is not looked at natively."""
        age = sum([drafter.age for drafter in self.native.values()])
        return [self._looks(text, age) for text in texts]

    def _looks(self, text: Text, age: int) -> Looks | None:
        request, known = text.request, text.looks
        if request.speculate is not True or request.history.guide is not None:
            return None
        if request.rewinds or request.room < 2:
            return None
        if known is None or known.age != age or known.failed != len(text.failed):
            numbers = [number for number in self.numbers if number not in text.failed]
            looks = [self.native[n].look(request) for n in numbers if n in self.native]
            found = [look for look in looks if look is not None]
            if len(found) < len(numbers) or not found:
                return None
            for number, look in zip(numbers, found, strict=True):
                look.owner, look.yields = number, self.yields[number]
            where = [self._known(number, text) for number in numbers]
            known = text.looks = Looks(found, where, numbers, age, len(text.failed))
        return known

    def _known(self, number: int, text: Text) -> tuple[int, ...]:
        source = self.sources[number]
        calibration = source.calibration(text.request)
        learning = (calibration.weights, calibration.variances, source.reach)
        here = addressof(text.recent) + number * sizeof(c_double)
        return (*map(addressof, learning), here)


def yields(sources: Sequence[Source]) -> list[int]:
    """Of each the source, by number, beside whose tokens it adds none; -1: there is none such."""
    names = [source.drafter.name for source in sources]
    asked = [source.drafter.yields for source in sources]
    return [names.index(name) if name in names else -1 for name in asked]
