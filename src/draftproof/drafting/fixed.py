"""Decisions for a text that another tree would change: sampled by rejection, or by what is typical.

There the same seed shall give the same text, so no clock and no neighbour may have a say, and no
token that was drawn either: dropping a node because of what it is biases the law. The depth of a
draft is settled before it is drawn, by this text's own counts and by fixed costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from draftproof.drafting.asking import Asking
from draftproof.drafting.base import Partial
from draftproof.drafting.growth import levels
from draftproof.drafting.sources import LARGEST, Source
from draftproof.drafting.text import Text
from draftproof.drafting.weights import reason
from draftproof.runners.curves import ROWS, shipped
from draftproof.tree import TokenTree
from draftproof.writing import Writing

KNEE = 9.0  # rows at which arithmetic takes as long as reading the weights: what is reckoned with
DEPTHS = 8
BELIEF = 2.0  # accepted tokens that a source's promise counts for
AGAIN = 16  # steps behind which a source that does not pay is tried with one token
GAIN = 0.02  # tokens a step must bring more than it costs
_COSTS = dict(zip(ROWS, shipped(KNEE), strict=True))  # of passes, one over one row is 1


@dataclass(slots=True)
class Own:
    """Of one text and one source: how often a draft came to each depth, and was accepted there."""

    accepted: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    offered: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)


@dataclass(slots=True)
class Known:
    """Of one text. own: by source. ran: the source and the depth of the tree that ran last."""

    own: list[Own]
    steps: int = 0
    ran: tuple[int, int] | None = None


class Fixed:
    """Picks for each text the source and the depth that its own counts call for."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._known: WeakKeyDictionary[Writing, Known] = WeakKeyDictionary()

    def release(self, request: Writing) -> None:
        self._known.pop(request, None)

    def propose(
        self, texts: Sequence[Text], asking: Asking, one: float
    ) -> tuple[dict[int, TokenTree], float]:
        """A tree for each, and what drafting them took."""
        picks = {text.request.key: self._pick(text) for text in texts}
        depths = {key: depth for key, (_, depth) in picks.items()}
        took = 0.0
        for number in range(len(self.sources)):
            asked = [text for text in texts if picks[text.request.key][0] == number]
            if asked:
                took += asking.propose(number, asked, one, partial(Until, depths))
        return {text.request.key: self._cut(text, *picks[text.request.key]) for text in texts}, took

    def _cut(self, text: Text, number: int, depth: int) -> TokenTree:
        """As deep as was settled: whole depths go, so that the laws of the others stay true."""
        request, step = text.request, text.step
        step.why = reason(text)
        step.extra, text.spent = text.spent, 0.0
        if number < 0 or not step.offered:
            return TokenTree.root(request.tokens[-1])
        share, whole = request.decisions.share(self.sources[number].name), step.offered[-1][1]
        tree = whole.truncate(min(depth, request.room - 1))
        most = request.params.max_draft_nodes
        tree = tree.bounded(LARGEST if most is None else min(most, LARGEST), by_depth=True)
        step.only, step.kept = number, [*range(len(tree))]
        step.tree, step.drafted_by = tree, [number] * (len(tree) - 1)
        share.offered += len(whole) - 1
        share.used += len(tree) - 1
        self._known[request].ran = number, max(tree.depths)
        return tree

    def _pick(self, text: Text) -> tuple[int, int]:
        """The source, by number, and the depth of this step's draft; (-1, 0): there is none."""
        if (known := self._known.get(text.request)) is None:
            known = self._known[text.request] = Known([Own() for _ in self.sources])
        _learn(known, text.request)
        step, known.steps = known.steps, known.steps + 1
        allowed = [n for n, source in enumerate(self.sources) if text.may_ask(n, source.name)]
        found = [(*_best(known.own[number], self.sources[number]), number) for number in allowed]
        gain, depth, number = max(found, default=(0.0, 0, 0))
        if gain > GAIN:
            return number, depth
        if allowed and step % AGAIN == AGAIN - 1:
            return allowed[step // AGAIN % len(allowed)], 1
        return -1, 0


class Until:
    """Levels up to the depth that was settled for each text."""

    def __init__(self, depths: dict[int, int]) -> None:
        self.depths = depths

    def __call__(self, growths: Sequence[Partial]) -> list[bool]:
        return [levels(growth) < self.depths[growth.request.key] for growth in growths]


def _learn(known: Known, request: Writing) -> None:
    """From what became of the tree that ran last."""
    ran, known.ran = known.ran, None
    if ran is None or request.feedback is None:
        return
    (number, depth), accepted = ran, request.feedback.accepted
    for at in range(min(depth, DEPTHS, accepted + 1)):
        known.own[number].offered[at] += 1
        known.own[number].accepted[at] += at < accepted


def _best(own: Own, source: Source) -> tuple[float, int]:
    """What a draft of a source brings beyond its cost, at the best depth; and that depth."""
    promise, cost = source.drafter.promise, source.drafter.drafting_cost
    won, survival, best = 0.0, 1.0, (0.0, 0)
    for depth in range(1, DEPTHS + 1):
        at = depth - 1
        tried, right = own.offered[at], own.accepted[at]
        survival *= (right + BELIEF * promise) / (tried + BELIEF)
        won += survival
        paid = cost * (depth if source.drafter.stepwise else 1) + _COSTS[1 + depth] - 1
        best = max(best, (won - paid, depth))
    return best
