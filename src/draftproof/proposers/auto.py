"""One price: what to draft, and how much of it to run, by what it brings and what it costs.

Every step takes the choice that brings the most expected tokens, less what its seconds would have
brought: a second is worth the tokens that the batch writes in one of late. A source is asked for
another token, a node gets a row, a request gets more of a pass than another, all by that one price.
An account per text bounds what may be lost (`drafting.account`). Under the coupled rule no choice
changes the text; a text that would be changed by it is decided for by `drafting.fixed`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor

from draftproof.drafting.asking import Asking
from draftproof.drafting.base import Drafter, Proposer, adopt, alone
from draftproof.drafting.fixed import Fixed
from draftproof.drafting.offers import Offer, Price, allot
from draftproof.drafting.account import Account
from draftproof.drafting.planning import Step, Text, reason, weights
from draftproof.drafting.sources import Clock, named
from draftproof.runners import costs
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

LATELY = 1 / 32  # weight of the last step in what a second is worth
USUAL = 0.2  # passes that asking for a text brings, before anything is known
OBJECTIVES = ("throughput", "latency")


class Auto(Drafter):
    """Drafts with whichever of its sources pays, as much as pays, or not at all.

    sources: proposers, or names of methods that need nothing. objective: "throughput" counts all
    requests' tokens alike; "latency" those of the slower ones for more.
    """

    name = "auto"

    def __init__(
        self,
        *sources: Proposer | str,
        objective: str = "throughput",
        clock: Clock = time.perf_counter,
    ) -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f"objective {objective!r} is unknown: use {' or '.join(OBJECTIVES)}")
        self.objective, self.clock = objective, clock
        self.given: Sequence[Proposer | str] = sources
        self.merge([each for each in sources if not isinstance(each, str)])
        self.given = sources

    def merge(self, parts: Sequence[Proposer]) -> None:
        """Use these: what was given, with proposers in place of names."""
        self.given = parts
        drafters = [adopt(part) for part in parts]
        self.sources = named(drafters, self.clock)
        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
        self.wants_best = any(drafter.wants_best for drafter in drafters)
        self.observes = any(drafter.observes for drafter in drafters)
        self.fixed, self.asking = Fixed(self.sources), Asking(self.sources)
        self._texts: WeakKeyDictionary[Writing, Text] = WeakKeyDictionary()
        self._plain = self._taken = (
            1.0  # of a step of late: time that plain decoding takes, and ours
        )
        self._account = Account()  # of all texts
        self._late = 0.0  # won by texts that ended
        self._bother = 0.02  # what asking for a text takes of late, whatever is offered
        self._usual = USUAL  # what it brings a text of late
        self._keys: list[int] = []  # of the last step's texts
        self._rests = self._rested = 0  # steps in which nobody is asked: to come, and done
        self._planned = 0.0, 0.0  # what the last step cost beyond a plain one, and that one

    def bind(self, target: Target, load: Load) -> None:
        for part in self.given:
            if isinstance(part, str):  # inside of another proposer, where nobody looks for names
                raise ValueError(f"auto in another method takes no names: replace {part!r}")
        for source in self.sources:
            source.drafter.bind(target, load)
        self.costs = costs.of(target)

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        for source in self.sources:
            if source.drafter.observes:
                source.drafter.observe(request, position, hidden)

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.asking.read_along([self._text(request) for request in requests])

    def release(self, request: Writing) -> None:
        if (text := self._texts.pop(request, None)) is not None:
            self._usual += (text.brings - self._usual) / 8
            self._late += text.settle(self.sources, self.costs.one, 1 + self._rested)
        self.fixed.release(request)
        for source in self.sources:
            source.drafter.release(request)
            source.forget(request)

    def close(self) -> None:
        self._texts.clear()
        for source in self.sources:
            source.drafter.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        keys = [request.key for request in requests]
        if self._rests and keys == self._keys:
            self._rests -= 1
            self._rested += 1
            return [TokenTree.chain(request.tokens[-1:]) for request in requests]
        began = self.clock()
        texts, one = [self._text(request) for request in requests], self.costs.one
        price = self._price(texts, one)
        steps = {
            text.request.key: Step(
                unit=price.unit, weight=each, worth=each * price.unit / len(texts)
            )
            for text, each in zip(texts, weights(texts, self.objective), strict=True)
        }
        bound = [text for text in texts if alone(text.request)]
        trees, took = self.fixed.propose(bound, steps, self.asking, one) if bound else ({}, 0.0)
        asked = [
            text for text in texts if text.request.key not in trees and text.asks(self._bother)
        ]
        drafting, running = self._plan(asked, steps, price, trees, one) if asked else (0.0, 0.0)
        for text in texts:
            if text.request.key not in trees:
                trees[text.request.key] = text.rest(steps[text.request.key])
        self._planned = took + drafting + running, price.unit
        if asked:
            own = (self.clock() - began) / one - took - drafting
            self._bother += (own / len(asked) - self._bother) * LATELY
        self._keys = keys
        if not bound and all([text.brings <= self._bother for text in asked]):
            self._rests = min([text.probe - text.steps for text in texts]) - 1
        return [trees[key] for key in keys]

    def _price(self, texts: Sequence[Text], one: float) -> Price:
        """Of this step; what became of the last ones is settled before."""
        steps, self._rests, self._rested = 1 + self._rested, 0, 0
        won = self._late + sum([text.settle(self.sources, one, steps) for text in texts])
        extra, unit = self._planned
        if unit:
            self._account.step(extra, won, unit, steps)
            self._plain += (steps * unit + won - self._plain) * LATELY
            self._taken += (steps * unit + extra - self._taken) * LATELY
        self._late = 0.0
        curve = self.costs.curve()
        unit = curve[min(len(texts), len(curve) - 1)]
        return Price(
            max(1.0, self._plain / self._taken) * len(texts) / unit,
            max(self.costs.rows, len(texts)),
            curve,
            unit,
            self.costs.attention,
            self._account.left,
        )

    def _plan(
        self,
        texts: Sequence[Text],
        steps: dict[int, Step],
        price: Price,
        trees: dict[int, TokenTree],
        one: float,
    ) -> tuple[float, float]:
        """Trees for texts that none can change; what drafting and running them cost."""
        offers = [self._offer(text, steps[text.request.key]) for text in texts]
        for source in self.sources:
            source.drafter.useful = price.useful
        took = self.asking.ask(texts, offers, steps, price, one)
        lengths = [text.length for text in texts]
        lefts = [text.account.left - steps[text.request.key].extra for text in texts]
        kept, brings = allot(offers, lengths, lefts, price, took)
        nodes = sum([len(each) - 1 for each in kept])
        row = price.extra(nodes) / nodes if nodes else 0.0
        for text, offer, own, brought in zip(texts, offers, kept, brings, strict=True):
            step = steps[text.request.key]
            step.kept, step.offer = own, offer
            step.extra += (len(own) - 1) * (row + price.attention * text.length)
            if len(own) == 1:
                step.why = reason(text, step)
            text.asked(brought)
            trees[text.request.key] = text.plan(step, self.sources)
        return took, row * nodes

    def _text(self, request: Writing) -> Text:
        found = self._texts.get(request)
        if found is None:
            found = self._texts[request] = Text(
                request, len(request.tokens), len(self.sources), self._usual
            )
        return found

    def _offer(self, text: Text, step: Step) -> Offer:
        request, most = text.request, text.request.params.max_draft_nodes
        limit = sys.maxsize if most is None else most
        return Offer(request.tokens[-1], request.room - 1, limit, step.weight)
