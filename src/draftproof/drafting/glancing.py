"""A glance at the free sources: each is asked for one token, which takes a few microseconds.

Whether a whole draft is worth asking for is told from it, and its token is learnt from as any
other. So a text for which nothing pays is written plainly, and soon back where something does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftproof.drafting.account import LATELY
from draftproof.drafting.calibration import conditional
from draftproof.drafting.lawful import lawful
from draftproof.drafting.looking import Looking
from draftproof.drafting.looks import Together
from draftproof.drafting.price import SAFELY, Price
from draftproof.drafting.settling import learn_guesses
from draftproof.drafting.sources import Clock, Source
from draftproof.drafting.text import Text

AHEAD = 4  # tokens behind the first one that are hoped for
COST = 0.003  # passes over one row that a glance for a text takes, before it is known


class Glances:
    """Of the sources that can be glanced at. cost: of a glance, in passes over one row."""

    def __init__(self, sources: Sequence[Source], vocabulary: int, clock: Clock) -> None:
        self.sources, self.vocabulary, self.clock = sources, vocabulary, clock
        self.numbers = [n for n, source in enumerate(sources) if source.drafter.glanced]
        self.looking = Looking(sources, self.numbers)
        self.cost = COST
        self.spent = 0.0  # in this step, in passes over one row

    @property
    def drafting(self) -> float:
        """What drafting with all of them takes for a text, in passes over one row."""
        return sum([self.sources[number].cost for number in self.numbers])

    def promise(self, texts: Sequence[Text], price: Price, each: float, once: float = 0.0) -> bool:
        """Whether asking for drafts may pay for any; `promising` tells.

        That takes `each` for every text, and `once` for all of them.
        """
        if not texts:
            return False
        seen, began = all([text.guessed for text in texts]), self.clock()
        together = self.looking.together(texts, price, each)
        if together is not None:
            surplus = self._surplus_together(together, [True] * len(texts))
        else:
            for number in self.numbers:
                self.sources[number].drafter.useful = 1
            for text in texts:
                if text.looks is not None:  # of an earlier glance
                    text.looks.found = False
            surplus = [self._surplus(text, price, each) for text in texts]
        return self._told(texts, surplus, price, once, began, seen)

    def promise_together(
        self, together: Together, texts: Sequence[Text], price: Price, once: float, step: int
    ) -> bool:
        """As `promise`, so many steps behind the one that was settled."""
        seen, began = all([text.guessed for text in texts]), self.clock()
        able = [text.able <= text.steps + step for text in texts]
        surplus = self._surplus_together(together, able)
        return self._told(texts, surplus, price, once, began, seen)

    def _told(
        self,
        texts: Sequence[Text],
        surplus: Sequence[float],
        price: Price,
        once: float,
        began: float,
        seen: bool,
    ) -> bool:
        gains = [more for more in surplus if more > 0]
        pays = bool(gains) and sum(gains) > price.rate * once
        for text, more in zip(texts, surplus, strict=True):
            text.promising = pays and more > 0
            text.guessed, looks = len(text.request.tokens), text.looks
            if looks is not None and not text.guesses:
                text.step.why = "price" if looks.found else "nothing offered"
        spent = (self.clock() - began) / price.one
        self.spent, took = self.spent + spent, spent / len(texts)
        if seen:  # the first one of a text reads its prompt, which is no glance
            self.cost += (min(took, 4 * self.cost + 1e-3) - self.cost) * LATELY
        took = min(took, 4 * self.cost)
        for text in texts:
            text.glanced += took
        return pays

    def _surplus_together(self, together: Together, able: Sequence[bool]) -> list[float]:
        try:
            return together.surplus(able)
        except MemoryError:  # they are asked again, and what fails then is told
            return [math.inf] * len(able)

    def _surplus(self, text: Text, price: Price, each: float) -> float:
        """Tokens that a draft is expected to bring, beyond what it takes to ask for it."""
        request = text.request
        learn_guesses(text, self.sources)
        text.step.why = "nothing offered"
        if request.room < 2:
            return -math.inf
        first, behind = 0.0, list[tuple[Source, float]]()
        for number in self.numbers:
            source = self.sources[number]
            if not source.free or not text.may_ask(number, source.name):
                continue
            try:
                (tree,) = source.drafter.propose([request])
                text.read[number] = len(request.tokens)
                if len((tree := lawful(request, tree)).tokens) < 2:
                    continue
                tree.check(request.tokens[-1], self.vocabulary)
                score, recent = conditional(tree.parents, tree.scores, 1), text.recent[number]
                chance = source.chance(request, score, 1, recent)
            except Exception:  # it is asked again, and what fails then is told
                return math.inf
            text.guesses.append((number, tree))
            text.step.why = "price"
            first = max(first, chance)
            behind.append((source, recent))
        # A child is never likelier than its parent: where the first token does not pay for the
        # cheapest row nothing does. What a draft brings has to pay for asking too.
        row = price.row + SAFELY * price.rate * price.attention * text.length
        gain = text.step.weight * first - row
        if gain > 0:
            gain *= 1 + max([_run(source, recent) for source, recent in behind], default=0.0)
        return gain - price.rate * each


def _run(source: Source, recent: float) -> float:
    """Tokens that are right in a row behind a first one."""
    found, survival = 0.0, 1.0
    for depth in range(2, AHEAD + 2):
        survival *= source.expected(depth, recent)
        found += survival
    return found
