"""One price: what to draft, and how much of it to run, by what it brings and what it costs.

Every step takes the choice that brings the most expected tokens, less what its seconds would have
brought: a second is worth the tokens that the batch writes in one of late. A source is asked for
another token, a node gets a row, a request gets more of a pass than another, all by that one price.
An account per text bounds what may be lost (`drafting.account`). Under the coupled rule no choice
changes the text; a text that would be changed by it is decided for by `drafting.fixed`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter, Proposer
from draftproof.drafting.control import Control
from draftproof.drafting.failing import attempt, let_go
from draftproof.drafting.sources import Clock, Source
from draftproof.drafting.standing import Standing
from draftproof.runners import costs
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

OBJECTIVES = ("throughput", "latency")


class Auto(Drafter):
    """Drafts with whichever of its sources pays, as much as pays, or not at all.

    sources: proposers, or names of methods that need nothing. objective: "throughput" brings all
    texts of a call to their end as early as possible, "latency" each of them.
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
        self.merge([each for each in sources if not isinstance(each, str)])
        self.given: Sequence[Proposer | str] = sources

    def merge(self, parts: Sequence[Proposer]) -> None:
        """Use these: what was given, with proposers in place of names."""
        self.given = parts
        drafters = [adopt(part) for part in parts]
        self.sources = _named(drafters, self.clock)
        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
        self.wants_best = any(drafter.wants_best for drafter in drafters)
        self.observes = any(drafter.observes for drafter in drafters)

    @property
    def next_taps(self) -> tuple[int, ...]:
        return self.taps if self.observes or self.control.rests.over else ()

    @property
    def figures(self) -> dict[str, float]:
        """What whoever runs it may watch: tokens that a plain pass is worth, passes lost so far."""
        price = self.control.price
        return {
            "price": price.rate if price is not None else 0.0,
            "debt": self.control.books.account.debt,
        }

    def bind(self, target: Target, load: Load) -> None:
        if isinstance(target, Standing):
            raise ValueError("auto decides for a model, not for its draft: give the draft a method")
        for part in self.given:
            if isinstance(part, str):  # inside of another proposer, where nobody looks for names
                raise ValueError(f"auto in another method takes no names: replace {part!r}")
        for source in self.sources:
            source.drafter.bind(target, load)
        self.control = Control(
            self.sources, costs.of(target), target.vocabulary, self.objective, self.clock
        )

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        for number, source in enumerate(self.sources):
            if source.drafter.observes:
                text = self.control.text(request)
                call = partial(source.drafter.observe, request, position, hidden)
                attempt(call, text, number, source)

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.control.read_along(requests)

    def release(self, request: Writing) -> None:
        try:
            self.control.release(request)
        finally:  # sources hold rows of caches
            for source in self.sources:
                let_go(source, request)

    def close(self) -> None:
        for source in self.sources:
            source.drafter.useful = Drafter.useful  # it may draft alone next
            source.drafter.close()

    def idle(self, requests: Sequence[Writing]) -> bool:
        return self.control.rests.go_on([request.key for request in requests])

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.control.propose(requests)


def _named(drafters: Sequence[Drafter], clock: Clock) -> list[Source]:
    """A source of each; a second one of a name gets a number."""
    names: list[str] = []
    for drafter in drafters:
        names.append(drafter.name)
        again = names.count(drafter.name)
        names[-1] += f" {again}" if again > 1 else ""
    return [Source(*each, clock) for each in zip(drafters, names, strict=True)]
