"""A glance at the free sources: each is asked for one token, which takes a few microseconds.

Whether a whole draft is worth asking for is told from it, and its token is learnt from as any
other. So a text for which nothing pays is written plainly, and soon back where something does.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.account import LATELY
from draftproof.drafting.calibration import conditional
from draftproof.drafting.lawful import lawful
from draftproof.drafting.offers import agreed
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
        self.cost = COST

    @property
    def drafting(self) -> float:
        """What drafting with all of them takes for a text, in passes over one row."""
        return sum([self.sources[number].cost for number in self.numbers])

    def promise(self, texts: Sequence[Text], price: Price, bother: float) -> bool:
        """Whether asking for a draft, which takes `bother`, may pay for any; `promising` tells."""
        if not texts:
            return False
        seen = all([text.guessed for text in texts])
        began = self.clock()
        for number in self.numbers:
            self.sources[number].drafter.useful = 1
        for text in texts:
            text.promising = self._promising(text, price, bother)
            text.step.why = "price" if text.guesses else "nothing offered"
        took = (self.clock() - began) / price.one / len(texts)
        if seen:  # the first one of a text reads its prompt, which is no glance
            self.cost += (min(took, 4 * self.cost + 1e-3) - self.cost) * LATELY
        for text in texts:
            text.glanced += min(took, 4 * self.cost)
        return any([text.promising for text in texts])

    def _promising(self, text: Text, price: Price, bother: float) -> bool:
        request = text.request
        learn_guesses(text, self.sources)
        if request.room < 2:
            return False
        text.guessed = len(request.tokens)
        first, behind = 0.0, list[tuple[Source, float]]()
        for number in self.numbers:
            source = self.sources[number]
            if not source.free or not text.may_ask(number, source.name):
                continue
            try:
                (tree,) = source.drafter.propose([request])
                if len((tree := lawful(request, tree)).tokens) < 2:
                    continue
                tree.check(request.tokens[-1], self.vocabulary)
                score, recent = conditional(tree.parents, tree.scores, 1), text.recent[number]
                chance = source.chance(request, score, 1, recent)
            except Exception:  # it is asked again, and what fails then is told
                return True
            text.guesses.append((number, tree))
            first = agreed(first, chance)
            behind.append((source, recent))
        # A child is never likelier than its parent: where the first token does not pay for the
        # cheapest row nothing does. What a draft brings has to pay for asking too.
        row = price.row + SAFELY * price.rate * price.attention * text.length
        gain, asking = text.step.weight * first - row, price.rate * bother
        if gain <= 0 or gain > asking:
            return gain > 0
        more = max([_run(source, recent) for source, recent in behind], default=0.0)
        return gain * (1 + more) > asking


def _run(source: Source, recent: float) -> float:
    """Tokens that are right in a row behind a first one."""
    found, survival = 0.0, 1.0
    for depth in range(2, AHEAD + 2):
        survival *= source.expected(depth, recent)
        found += survival
    return found
