"""What a draft of a dear source is expected to bring a text, and what it takes."""

from __future__ import annotations

from draftproof.drafting.asking_cost import READ
from draftproof.drafting.deepening import gain
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text

AHEAD = 128  # tokens within which reading a prompt along must pay
DEPTHS = 8  # that are looked at to judge a whole draft


def calls(source: Source, texts: int) -> float:
    """What a first token for so many texts takes."""
    return source.cost * (1 if source.drafter.stepwise else texts)


def reading_pays(number: int, source: Source, text: Text) -> bool:
    """Whether a source may read a prompt along: drafting will bring more than that takes."""
    prompt, _ = reading(number, source, text)  # nothing, once it was paid with the first slice
    if source.free or prompt > max(0.0, source.funds.left):
        return source.free
    won, survival = source.further - source.cost, 1.0
    for depth in range(1, DEPTHS + 1):
        survival *= source.expected(depth, text.recent[number])
        won += max(0.0, survival - source.further)
    tokens = min(text.request.room, AHEAD)
    return won > 0 and won / (1 + won) * tokens > 2 * prompt


def worth(
    number: int, source: Source, text: Text, offer: Offer, price: Price, sharing: int
) -> float:
    """Of a draft, but for what its first token takes, which comes with the others'.

    sharing: texts that are drafted for together, whose levels are grown at once.
    """
    recent, grows = text.recent[number], source.drafter.stepwise
    total = best = gain(source, recent, text, offer, 1.0, 1, price)
    level = price.rate * source.further / sharing if grows else 0.0
    survival = 1.0
    for depth in range(1, DEPTHS):
        survival *= source.expected(depth, recent)
        more = gain(source, recent, text, offer, survival, depth + 1, price) - level
        if grows and more <= 0:  # it would end there
            break
        total += more
        best = max(best, total)
    return best


def reading(number: int, source: Source, text: Text) -> tuple[float, float]:
    """What it takes to read what the source missed: of the prompt, and of what was written."""
    prompt, written = text.missed(number)
    return prompt * source.further / READ, written * source.further / READ
