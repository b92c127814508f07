"""A step's sources are asked: first those that cost nothing, then the dear ones that may pay.

A source is foreign code: where it fails, a text goes on without it, and says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from draftproof.drafting import dear, worth
from draftproof.drafting.base import GoesOn, alone
from draftproof.drafting.deepening import Deepening
from draftproof.drafting.failing import check, give_up, let_go, too_large
from draftproof.drafting.lawful import lawful
from draftproof.drafting.looking import yields
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.sources import LARGEST, Source
from draftproof.drafting.text import Text
from draftproof.drafting.together import passed
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class Asking:
    """Asks sources for the texts of a step. vocabulary: ids that a tree may hold."""

    def __init__(self, sources: Sequence[Source], vocabulary: int) -> None:
        self.sources, self.vocabulary = sources, vocabulary
        self._yields = yields(sources)
        self._order = sorted(enumerate(sources), key=lambda each: self._yields[each[0]])

    def free(
        self, texts: Sequence[Text], offers: Sequence[Offer], price: Price, one: float
    ) -> float:
        """Fill `offers` and what each step is offered; what drafting took, in passes of `one`."""
        took = 0.0
        for number, source in [each for each in self._order if each[1].free]:
            asked = [text for text in texts if text.may_ask(number, source.name)]
            if asked:
                took += self.propose(number, asked, one)
                self._offer(number, texts, offers, price.least)
        return took

    def dear(
        self, texts: Sequence[Text], offers: Sequence[Offer], price: Price, one: float, took: float
    ) -> tuple[float, bool]:
        """As `free`, behind those, which took so much; whether an offer has more than before."""
        left, more = price.left, False
        for number, source in enumerate(self.sources):
            if dear.may_try(source):
                price = replace(price, left=left - took)
                found, shadow = dear.chosen(number, source, texts, offers, price)
                if not found:
                    continue
                asked = [text for text, _ in found.values()]
                levels = (1 if source.asking.known else 2) if shadow else None
                deepening = partial(Deepening, number, source, found, price, levels)
                took += self.propose(number, asked, one, deepening)
                if not shadow:
                    more = True
                    self._offer(number, texts, offers, price.least)
        return took, more

    def read_along(self, texts: Sequence[Text]) -> None:
        """A source with a context of its own reads prompts along, where that will pay."""
        for number, source in enumerate(self.sources):
            reading = [
                text
                for text in texts
                if text.may_ask(number, source.name)
                and (alone(text.request) or worth.reading_pays(number, source, text))
            ]
            if reading:
                self._read(number, reading)

    def _read(self, number: int, texts: Sequence[Text]) -> None:
        source = self.sources[number]

        def read(some: Sequence[Text]) -> Sequence[None]:
            source.drafter.read_along([text.request for text in some])
            return [None] * len(some)

        def stop(text: Text, error: Exception) -> None:
            give_up(text, number, source, error)

        for text, _ in passed(texts, read, stop):
            source.funds.spend(worth.reading(number, source, text)[0])
            text.read[number] = len(text.request.prompt)

    def propose(
        self,
        number: int,
        texts: Sequence[Text],
        one: float,
        goes_on: Callable[[], GoesOn] | None = None,
    ) -> float:
        """Trees of one source into the steps of the texts; what drafting them took."""
        source = self.sources[number]
        by_key = {text.request.key: text for text in texts}
        took = 0.0

        def proposed(requests: Sequence[Writing]) -> list[TokenTree]:
            nonlocal took
            missed = [by_key[request.key].missed(number) for request in requests]
            grows = None if goes_on is None else goes_on()
            trees, passes = source.propose(requests, grows, one, missed)
            took += passes
            return trees

        def stop(request: Writing, error: Exception) -> None:
            give_up(by_key[request.key], number, source, error)

        for request, tree in passed([text.request for text in texts], proposed, stop):
            text = by_key[request.key]
            try:
                check(tree, request, self.vocabulary)
                tree = lawful(request, tree)
            except ValueError as error:
                stop(request, error)
            if request.plain:  # it said so itself
                request.plain = False
                text.failed.add(number)
                let_go(source, request)
            if number not in text.failed:
                if len(tree) - 1 > LARGEST:
                    too_large(text, number, source, len(tree) - 1)
                text.read[number] = len(request.tokens)
                text.step.offered.append((number, tree))
        for text in texts:
            text.spent += took / len(texts)
            text.request.decisions.share(source.name).seconds += took * one / len(texts)
        return took

    def _offer(
        self, number: int, texts: Sequence[Text], offers: Sequence[Offer], least: float
    ) -> None:
        for text, offer in zip(texts, offers, strict=True):
            offered = text.step.offered
            if offered and offered[-1][0] == number and len(offered[-1][1].tokens) > 1:
                tree = offered[-1][1]
                chances = self.sources[number].chances(
                    text.request, tree, text.recent[number], least
                )
                offer.add(number, tree, chances, self._yields[number])
