"""The choice of a step: who is asked, which of the offered nodes run, and what became of them.

Every step takes the choice that brings the most expected tokens, less what its seconds would have
brought: a second is worth the tokens that the batch writes in one of late. Costs are in passes of
the target over one row, so what slows everything alike changes no decision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from draftproof.drafting import dear
from draftproof.drafting.account import GIVEN, Books
from draftproof.drafting.asking import Asking
from draftproof.drafting.base import alone
from draftproof.drafting.fixed import Fixed
from draftproof.drafting.glancing import Glances
from draftproof.drafting.lookups import LookUps
from draftproof.drafting.planning import Planning, rows
from draftproof.drafting.price import Price, now
from draftproof.drafting.resting import Rests
from draftproof.drafting.settling import settle
from draftproof.drafting.sources import Clock, Source
from draftproof.drafting.text import Text
from draftproof.drafting.weights import by_row, weights
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
        self.lookups = LookUps(sources, self.rests.glances.looking, vocabulary)
        self.planning = Planning(self.asking, self.lookups, self.rests)
        self._usual = USUAL  # what asking brings a text of late

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.asking.read_along([self.text(request) for request in requests])

    def release(self, request: Writing) -> None:
        if (text := self._texts.pop(request, None)) is not None:
            self._usual += (text.hopes - self._usual) * LATEST
            for source, pause in zip(self.sources, text.pause, strict=True):
                source.pause = pause
            self.lookups.learn([text])
            self.books.late += settle(text, self.sources, self.costs.one)
            self.books.end(text.saved)
        self.rests.release(request.key)
        self.fixed.release(request)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        began, one, steps_done = self.clock(), self.costs.one, self.rests.end()
        texts = [self.text(request) for request in requests]
        self.lookups.learn(texts)
        won = sum([settle(text, self.sources, one) for text in texts])
        self.books.settle(won, steps_done)
        price = self.price = now(texts, self.costs, self.books.left)
        own = by_row(price.known, price.soon, price.reading)
        counted = weights(texts, self.objective, price.soon, own)
        price.heaviest = max(price.heaviest, *counted)
        count, unit, token = len(texts), price.unit, price.token
        for text, each in zip(texts, counted, strict=True):
            step = text.step
            step.unit, step.texts, step.weight, step.worth = unit, count, each, each * token
        for source in self.sources:
            source.drafter.useful = sys.maxsize
            source.funds.earn(GIVEN * steps_done * price.unit)
        bound = [text for text in texts if alone(text.request)]
        trees, drafted = self.fixed.propose(bound, self.asking, one) if bound else ({}, 0.0)
        took = drafted + self._run_fixed(bound, price)
        price.left -= took
        free = [text for text in texts if text.request.key not in trees]
        asked = self.rests.asked(free, price, not self.costs.passes)
        if asked:
            begun = self.clock()
            drafting, running = self.planning.plan(asked, price, trees, one)
            each = ((self.clock() - begun) / one - drafting) / len(asked)
            self.rests.bother.took((begun - began) / one - drafted, each)
            took += drafting + running
        for text in free:
            if text.request.key not in trees:
                text.request.planned = (), text.step.why
                trees[text.request.key] = TokenTree.root(text.request.tokens[-1])
        self.books.plan(took, price.unit)
        if not bound and all([len(trees[text.request.key].tokens) == 1 for text in texts]):
            self.rests.begin([request.key for request in requests], texts, price)
        return [trees[request.key] for request in requests]

    @staticmethod
    def _run_fixed(texts: Sequence[Text], price: Price) -> float:
        """Charge texts whose trees no choice may change with their rows; what all of these cost."""
        ran = rows(texts, price)
        for text, each in zip(texts, ran, strict=True):
            text.step.extra += each
        return sum(ran)

    def text(self, request: Writing) -> Text:
        """What is known of it, begun where nothing is."""
        found = self._texts.get(request)
        if found is None:
            saved = self.books.begin(alone=not self._texts)
            pauses = [source.pause for source in self.sources]
            found = self._texts[request] = Text(request, len(request.tokens), pauses, self._usual)
            # Where short texts win, the next one is not done before it dares to look again.
            found.account.debt = -saved
            serves = [source.drafter.serves(request) for source in self.sources]
            found.failed |= {number for number, does in enumerate(serves) if not does}
            found.full = dear.first_look(self.sources, found)
        return found
