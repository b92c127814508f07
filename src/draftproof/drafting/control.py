"""The choice of a step: who is asked, which of the offered nodes run, and what became of them.

Every step takes the choice that brings the most expected tokens, less what its seconds would have
brought: a second is worth the tokens that the batch writes in one of late. Costs are in passes of
the target over one row, so what slows everything alike changes no decision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from draftproof.drafting import dear
from draftproof.drafting.account import Books
from draftproof.drafting.asking import Asking
from draftproof.drafting.base import alone
from draftproof.drafting.fixed import Fixed
from draftproof.drafting.glancing import Glances
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price, allot, now
from draftproof.drafting.resting import Rests
from draftproof.drafting.settling import planned, settle
from draftproof.drafting.sources import Clock, Source
from draftproof.drafting.telling import tell
from draftproof.drafting.text import Text
from draftproof.drafting.weights import by_row, reason, weights
from draftproof.runners.costs import PassCosts
from draftproof.tree import TokenTree
from draftproof.writing import Writing

USUAL = 0.2  # passes that asking for a text brings, before anything is known
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
        self._texts: dict[Writing, Text] = {}  # until they are released
        self.books = Books()
        self.price: Price | None = None  # of the last step in which somebody was asked
        self.rests = Rests(Glances(sources, vocabulary, clock))
        self._usual = USUAL  # what asking brings a text of late

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.asking.read_along([self.text(request) for request in requests])

    def release(self, request: Writing) -> None:
        if (text := self._texts.pop(request, None)) is not None:
            self._usual += (text.hopes - self._usual) * LATEST
            for source, pause in zip(self.sources, text.pause, strict=True):
                source.pause = pause
            self.books.late += settle(text, self.sources, self.costs.one)
            self.books.end(text.saved)
        self.fixed.release(request)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        began, one, steps_done = self.clock(), self.costs.one, self.rests.end()
        texts = [self.text(request) for request in requests]
        won = sum([settle(text, self.sources, one) for text in texts])
        self.books.settle(won, steps_done)
        price = self.price = now(texts, self.costs, self.books.left)
        own = by_row(price.known, price.soon)
        counted = weights(texts, self.objective, price.soon, own)
        for text, each in zip(texts, counted, strict=True):
            step = text.step
            step.unit, step.texts = price.unit, len(texts)
            step.weight, step.worth = each, each * price.token
        for source in self.sources:
            source.drafter.useful = sys.maxsize
        bound = [text for text in texts if alone(text.request)]
        trees, took = self.fixed.propose(bound, self.asking, one) if bound else ({}, 0.0)
        free = [text for text in texts if text.request.key not in trees]
        asked = self.rests.asked(free, price, self.books.left, not self.costs.passes)
        if asked:
            begun = self.clock()
            drafting, running = self._plan(asked, price, trees, one)
            each = ((self.clock() - begun) / one - drafting) / len(asked)
            self.rests.bother.took((begun - began) / one - took, each)
            took += drafting + running
        for text in free:
            if text.request.key not in trees:
                text.request.planned = (), text.step.why
                trees[text.request.key] = TokenTree.root(text.request.tokens[-1])
        self.books.plan(took, price.unit)
        if not bound and all([len(trees[text.request.key].tokens) == 1 for text in texts]):
            self.rests.begin([request.key for request in requests], texts, price)
        return [trees[request.key] for request in requests]

    def _plan(
        self,
        texts: Sequence[Text],
        price: Price,
        trees: dict[int, TokenTree],
        one: float,
    ) -> tuple[float, float]:
        """Trees for texts that none can change; what drafting and running them cost."""
        offers = [Offer.to(text.request, text.step.weight) for text in texts]
        useful = min(price.useful, max([text.deep for text in texts]))
        for source in self.sources:
            source.drafter.useful = useful
        bother = self.rests.bother.share(len(texts))
        for text in texts:
            text.spent = bother
        took = self.asking.ask(texts, offers, price, one)
        lengths = [text.length for text in texts]
        # It was asked because a node can be paid for: that drafting took longer changes nothing.
        rows = [price.likely(1) + price.attention * text.length for text in texts]
        kept_back = [row * text.promising for row, text in zip(rows, texts, strict=True)]
        lefts = [max(text.left, row) for row, text in zip(kept_back, texts, strict=True)]
        kept, brings = allot(offers, lengths, lefts, price, max(price.left - took, *kept_back, 0))
        nodes = sum([len(each) - 1 for each in kept])
        row = price.likely(nodes) / nodes if nodes else 0.0
        for text, offer, own, brought in zip(texts, offers, kept, brings, strict=True):
            step = text.step
            step.kept, step.offer = own, offer
            text.asked(brought - text.spent + bother, self.rests.glances.cost)
            text.full = dear.next_look(self.sources, text, price, bother)
            step.extra = text.spent + (len(own) - 1) * (row + price.attention * text.length)
            if len(own) == 1:
                step.why = reason(text)
            trees[text.request.key] = planned(text, self.sources)
            tell(text, self.sources, one)
        return took, row * nodes + bother * len(texts)

    def text(self, request: Writing) -> Text:
        """What is known of it, begun where nothing is."""
        found = self._texts.get(request)
        if found is None:
            saved = self.books.begin(alone=not self._texts)
            pauses = [source.pause for source in self.sources]
            found = self._texts[request] = Text(request, len(request.tokens), pauses, self._usual)
            # Where short texts win, the next one is not done before it dares to look again.
            found.account.debt = -saved
            found.full = dear.first_look(self.sources, found)
            serves = [source.drafter.serves(request) for source in self.sources]
            found.failed |= {number for number, does in enumerate(serves) if not does}
        return found
