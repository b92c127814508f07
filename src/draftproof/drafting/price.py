"""What a step's time is worth, and what more rows cost it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting.text import Text
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import FURTHER

SURE = 0.87  # that a token of a draft is right, where many are in a row
SAFELY = 1.25  # times what rows cost that nodes must bring: those that are taken seemed the best
HOPELESS = 0.02  # chance below which nothing behind a node is looked at


@dataclass(slots=True)  # not frozen, which is dear to make: one is made in every step
class Price:
    """What time is worth, and what a step costs, in passes over one row.

    rate: tokens in the time of such a pass. rows: of the pass without drafts. curve: cost of a pass
    by its rows, at best where little is known, which decides; known: the likely cost, which is
    accounted for. unit: of a plain step. token: what one takes plainly, when all `soon` texts are
    written. attention: of a row more of a text, for each token that it attends to. left: what the
    step may cost more than a plain one. one: seconds of such a pass. reading: of the keys and
    values of a text, for one row. room: nodes that the step may run; None: any number.
    row: tokens that the cheapest row must bring. heaviest: weight of a token of the text whose
    tokens count most, or 2, as rows behind a dear one may take nothing.
    """

    rate: float
    rows: int
    curve: Sequence[float]
    known: Sequence[float] = ()
    unit: float = 1.0
    token: float = 1.0
    soon: int = 1
    attention: float = 0.0
    left: float = math.inf
    one: float = 1.0
    reading: float = 0.0
    room: int | None = None
    heaviest: float = 2.0
    row: float = field(init=False)

    def __post_init__(self) -> None:
        self.row = SAFELY * self.rate * min(self.extra(1), self.extra(8) / 8)

    @property
    def least(self) -> float:
        """A chance below which no node can pay, whatever else runs."""
        return max(HOPELESS, self.row / self.heaviest)

    @property
    def reads(self) -> bool:
        """Whether the pass reads of a prompt too: more rows than one of each text."""
        return self.rows > self.soon

    def pays(self, weight: float) -> bool:
        """Whether a token of that weight can pay for a row, if it is right."""
        return weight > self.row

    @property
    def useful(self) -> int:
        """Nodes of one draft that can pay, each as sure as drafts ever are."""
        return 1 + max(0, int(math.log(self.least) / math.log(SURE)))

    def extra(self, nodes: int) -> float:
        """What so many rows more cost, attention left out."""
        return extra(self.curve, self.rows, nodes)

    def likely(self, nodes: int) -> float:
        """As `extra`, without the benefit of the doubt."""
        return extra(self.known or self.curve, self.rows, nodes)


def now(texts: Sequence[Text], costs: PassCosts, left: float) -> Price:
    """What time is worth to a batch, by what it wrote of late; `left` is what it may lose.

    A token takes its part of a step in which all write whose prompts are still being read: what it
    is ahead by now is saved then.
    """
    curve, writing = costs.curve(), len(texts)
    most = len(curve) - 1
    plain, taken = sum([text.plain for text in texts]), sum([text.taken for text in texts])
    reading = costs.attention * sum([text.length for text in texts]) / writing  # of each text
    rows, soon = max(costs.rows, writing), max(costs.texts, writing)
    unit = curve[min(writing, most)] + reading * writing
    token = min(unit / writing, curve[min(soon, most)] / soon + reading)
    rate = max(1.0, plain / taken) / token
    hopeful, attention, room = costs.hopeful(rows), FURTHER * costs.attention, costs.slices.room
    one = costs.one
    return Price(rate, rows, hopeful, curve, unit, token, soon, attention, left, one, reading, room)


def extra(curve: Sequence[float], rows: int, nodes: int) -> float:
    """What a pass over `rows` rows costs more with so many nodes besides."""
    most = len(curve) - 1
    last = min(rows + nodes, most)
    beyond = (rows + nodes - last) * curve[most] / most
    return curve[last] - curve[min(rows, most)] + beyond
