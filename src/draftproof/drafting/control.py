"""The choice of a step: who is asked, which of the offered nodes run, and what became of them.

Every step takes the choice that brings the most expected tokens, less what its seconds would have
brought: a second is worth the tokens that the batch writes in one of late. Costs are in passes of
the target over one row, so what slows everything alike changes no decision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from draftproof.drafting.account import Books, Rests, wait
from draftproof.drafting.asking import Asking, Steps
from draftproof.drafting.base import alone
from draftproof.drafting.fixed import Fixed
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price, allot, now
from draftproof.drafting.sources import Clock, Source
from draftproof.drafting.step import Step
from draftproof.drafting.telling import tell
from draftproof.drafting.text import Text
from draftproof.drafting.weights import reason, weights
from draftproof.runners.costs import PassCosts
from draftproof.tree import TokenTree
from draftproof.writing import Writing

USUAL = 0.2  # passes that asking for a text brings, before anything is known
HARDLY = 4  # steps until it is looked again whether a token of a text counts enough to pay
LATEST = 1 / 8  # weight of the last text in what it usually brings


class Control:
    """Decides for a batch. costs: of the target's passes."""

    def __init__(
        self,
        sources: Sequence[Source],
        costs: PassCosts,
        vocabulary: int,
        objective: str,
        clock: Clock,
    ) -> None:
        self.sources, self.costs = sources, costs
        self.objective, self.clock = objective, clock
        self.fixed, self.asking = Fixed(sources), Asking(sources, vocabulary)
        self._texts: WeakKeyDictionary[Writing, Text] = WeakKeyDictionary()
        self.books, self.rests = Books(), Rests()
        self.price: Price | None = None  # of the last step in which somebody was asked
        self._usual = USUAL  # what asking brings a text of late

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.asking.read_along([self._text(request) for request in requests])

    def release(self, request: Writing) -> None:
        if (text := self._texts.pop(request, None)) is not None:
            self._usual += (text.brings - self._usual) * LATEST
            self.books.late += text.settle(self.sources, self.costs.one, 1 + self.rests.done)
        self.fixed.release(request)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        keys = [request.key for request in requests]
        if self.rests.rest(keys):
            return [TokenTree.chain(request.tokens[-1:]) for request in requests]
        began, one, steps_done = self.clock(), self.costs.one, self.rests.end()
        texts = [self._text(request) for request in requests]
        won = sum([text.settle(self.sources, one, steps_done) for text in texts])
        self.books.settle(won, steps_done)
        price = self.price = now(texts, self.costs, self.books.left)
        steps = {
            text.request.key: Step(
                unit=price.unit, weight=each, texts=len(texts), worth=each * price.token
            )
            for text, each in zip(texts, weights(texts, self.objective, price.soon), strict=True)
        }
        bound = [text for text in texts if alone(text.request)]
        for source in self.sources:
            source.drafter.useful = sys.maxsize
        trees, took = self.fixed.propose(bound, steps, self.asking, one) if bound else ({}, 0.0)
        free = [text for text in texts if text.request.key not in trees]
        waits = self._waits(free, steps, price)
        asked = [text for text, steps_more in zip(free, waits, strict=True) if not steps_more]
        if asked:
            drafting, running = self._plan(asked, steps, price, trees, one)
            self.rests.took(((self.clock() - began) / one - took - drafting) / len(asked))
            took += drafting + running
        for text in free:
            if text.request.key not in trees:
                trees[text.request.key] = text.rest(steps[text.request.key])
        self.books.plan(took, price.unit)
        if not bound and all([len(trees[key].tokens) == 1 for key in keys]):
            self.rests.begin(keys, min(self._waits(free, steps, price)) - 1)
        return [trees[key] for key in keys]

    def _waits(self, texts: Sequence[Text], steps: Steps, price: Price) -> list[int]:
        """Plain steps until sources are asked for each text; 0: in this one."""
        bother = self.rests.bother
        least = min([0.0 if source.free else source.cost for source in self.sources], default=0.0)
        patience = wait(bother * len(texts) - self.books.left, price.unit)
        if not self.costs.passes:  # the first step tells what a pass takes
            patience = max(patience, 1)
        return [
            max(patience, text.wait(bother, least))
            if price.pays(steps[text.request.key].weight)
            else max(patience, HARDLY)
            for text in texts
        ]

    def _plan(
        self,
        texts: Sequence[Text],
        steps: Steps,
        price: Price,
        trees: dict[int, TokenTree],
        one: float,
    ) -> tuple[float, float]:
        """Trees for texts that none can change; what drafting and running them cost."""
        offers = [Offer.to(text.request, steps[text.request.key].weight) for text in texts]
        useful = min(price.useful, max([text.deep for text in texts]))
        for source in self.sources:
            source.drafter.useful = useful
        for text in texts:
            text.spent = self.rests.bother
        took = self.asking.ask(texts, offers, steps, price, one)
        lengths = [text.length for text in texts]
        lefts = [text.left for text in texts]
        kept, brings = allot(offers, lengths, lefts, price, took)
        nodes = sum([len(each) - 1 for each in kept])
        row = price.likely(nodes) / nodes if nodes else 0.0
        for text, offer, own, brought in zip(texts, offers, kept, brings, strict=True):
            step = steps[text.request.key]
            step.kept, step.offer = own, offer
            text.asked(brought - text.spent + self.rests.bother)
            step.extra = text.spent + (len(own) - 1) * (row + price.attention * text.length)
            if len(own) == 1:
                step.why = reason(text, step)
            trees[text.request.key] = text.plan(step, self.sources)
            tell(text, self.sources, one)
        return took, row * nodes + self.rests.bother * len(texts)

    def _text(self, request: Writing) -> Text:
        found = self._texts.get(request)
        if found is None:
            found = self._texts[request] = Text(
                request, len(request.tokens), len(self.sources), self._usual
            )
        return found
