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
_COSTS = dict(zip(ROWS, shipped(KNEE), strict=True))


@dataclass(slots=True)
class Own:
    """Of one text and one source: how often a draft came to each depth, and was accepted there."""

    accepted: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)
    offered: list[float] = field(default_factory=lambda: [0.0] * DEPTHS)


class Fixed:
    """Picks for each text the source and the depth that its own counts call for."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._own: WeakKeyDictionary[Writing, list[Own]] = WeakKeyDictionary()
        self._steps: WeakKeyDictionary[Writing, int] = WeakKeyDictionary()
        self._ran: WeakKeyDictionary[Writing, tuple[int, int]] = WeakKeyDictionary()

    def release(self, request: Writing) -> None:
        for known in (self._own, self._steps, self._ran):
            known.pop(request, None)

    def propose(
        self, texts: Sequence[Text], asking: Asking, one: float
    ) -> tuple[dict[int, TokenTree], float]:
        """A tree for each, and what drafting them took."""
        picks = {text.request.key: self._pick(text) for text in texts}
        took, trees = 0.0, dict[int, TokenTree]()
        for number in range(len(self.sources)):
            picked = {
                text.request.key: (text, pick[1])
                for text in texts
                if (pick := picks[text.request.key]) is not None and pick[0] == number
            }
            if picked:
                depths = {key: depth for key, (_, depth) in picked.items()}
                asked = [text for text, _ in picked.values()]
                took += asking.propose(number, asked, one, partial(Until, depths))
        for text in texts:
            trees[text.request.key] = self._cut(text, picks[text.request.key])
        return trees, took

    def _cut(self, text: Text, pick: tuple[int, int] | None) -> TokenTree:
        """As deep as was settled: whole depths go, so that the laws of the others stay true."""
        request, step = text.request, text.step
        step.why = reason(text)
        step.extra, text.spent = text.spent, 0.0
        if pick is None or not step.offered:
            return TokenTree.chain(request.tokens[-1:])
        number, depth = pick
        share, whole = request.decisions.share(self.sources[number].name), step.offered[-1][1]
        tree = whole.truncate(min(depth, request.room - 1))
        most = request.params.max_draft_nodes
        tree = tree.bounded(LARGEST if most is None else min(most, LARGEST), by_depth=True)
        step.only, step.kept = number, [*range(len(tree))]
        share.offered += len(whole) - 1
        share.used += len(tree) - 1
        self._ran[request] = number, max(tree.depths)
        return tree

    def _pick(self, text: Text) -> tuple[int, int] | None:
        """The source and the depth of this step's draft."""
        request = text.request
        own = self._own.setdefault(request, [Own() for _ in self.sources])
        self._learn(request, own)
        step = self._steps[request] = self._steps.get(request, -1) + 1
        allowed = [n for n, source in enumerate(self.sources) if text.may_ask(n, source.name)]
        found = [(*_best(own[number], self.sources[number]), number) for number in allowed]
        gain, depth, number = max(found, default=(0.0, 0, 0))
        if gain > GAIN:
            return number, depth
        if allowed and step % AGAIN == AGAIN - 1:
            return allowed[step // AGAIN % len(allowed)], 1
        return None

    def _learn(self, request: Writing, own: list[Own]) -> None:
        ran = self._ran.pop(request, None)
        if ran is None or request.feedback is None:
            return
        number, depth = ran
        accepted = request.feedback.accepted
        for at in range(min(depth, DEPTHS)):
            if at > accepted:
                break
            own[number].offered[at] += 1
            own[number].accepted[at] += at < accepted


class Until:
    """Levels up to the depth that was settled for each text."""

    def __init__(self, depths: dict[int, int]) -> None:
        self.depths = depths

    def __call__(self, growths: Sequence[Partial]) -> list[bool]:
        return [levels(growth) < self.depths[growth.request.key] for growth in growths]


def _best(own: Own, source: Source) -> tuple[float, int]:
    """What a draft of a source brings beyond its cost, at the best depth; and that depth."""
    promise, cost = source.drafter.promise, source.drafter.drafting_cost
    won, survival, best = 0.0, 1.0, (0.0, 0)
    for depth in range(1, DEPTHS + 1):
        at = depth - 1
        tried, right = own.offered[at], own.accepted[at]
        survival *= (right + BELIEF * promise) / (tried + BELIEF)
        won += survival
        paid = cost * (depth if source.drafter.stepwise else 1) + _pass(1 + depth) - 1
        best = max(best, (won - paid, depth))
    return best


def _pass(rows: int) -> float:
    """Cost of a pass, in passes over one row; between two that are known, linear."""
    low = max(known for known in ROWS if known <= rows)
    high = min(known for known in ROWS if known >= rows)
    share = (rows - low) / (high - low) if high > low else 0.0
    return _COSTS[low] + share * (_COSTS[high] - _COSTS[low])
