"""Sources whose drafting takes passes of its own: when one is asked, and how deep its drafts grow.

Asked for another token only where that token, beyond what the others offer already, is expected to
bring more than its price. One that does not pay is looked at again in the shadow: its draft is
compared with what is written, and never run.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting import pausing
from draftproof.drafting.asking_cost import READ
from draftproof.drafting.deepening import RESERVE, Chosen, gain
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.sources import SOON, Source
from draftproof.drafting.text import FULL, PROBE, Text

AMORTISED = 8  # steps over which it is paid that a draft has to read what it missed
AHEAD = 128  # tokens within which reading a prompt along must pay
DEPTHS = 8  # that are looked at to judge a whole draft


def chosen(
    number: int, source: Source, texts: Sequence[Text], offers: Sequence[Offer], price: Price
) -> tuple[Chosen, bool]:
    """The texts that a source drafts for in this step; whether it does so in the shadow."""
    paying: list[tuple[float, Text, Offer]] = []
    for text, offer in zip(texts, offers, strict=True):
        if text.may_ask(number, source.name) and offer.limit > 0 and offer.depth > 0:
            first = _worth(number, source, text, offer, price)
            prompt, written = _reading(number, source, text)
            reading = prompt + written
            first -= price.rate * reading / AMORTISED
            if (
                first > 0
                and not pausing.rests(number, text)
                and prompt <= source.funds.left
                and text.left > source.cost + written + price.likely(1) + RESERVE
            ):
                paying.append((first, text, offer))
    paying.sort(key=lambda each: -each[0])
    while paying and _calls(source, len(paying)) + price.likely(len(paying)) > price.left:
        paying.pop()
    if sum([first for first, _, _ in paying]) > price.rate * _calls(source, len(paying)):
        for _, text, _ in paying:
            pausing.go_on(number, text)
        return {text.request.key: (text, offer) for _, text, offer in paying}, False
    due, left = Chosen(), price.left - source.cost
    for text, offer in zip(texts, offers, strict=True):
        if left < 0:
            break
        if text.may_ask(number, source.name) and offer.depth > 0 and _due(number, source, text):
            due[text.request.key] = text, offer
            pausing.put_off(number, text)
            left -= 0.0 if source.drafter.stepwise else source.cost
    return due, True


def _calls(source: Source, texts: int) -> float:
    """What a first token for so many texts takes."""
    return source.cost * (1 if source.drafter.stepwise else texts)


def reading_pays(number: int, source: Source, text: Text) -> bool:
    """Whether a source may read a prompt along: drafting will bring more than that takes."""
    reading = len(text.request.prompt) * source.further / READ
    if source.free or reading > source.funds.left:
        return source.free
    won, survival = source.further - source.cost, 1.0
    for depth in range(1, DEPTHS + 1):
        survival *= source.expected(depth, text.recent[number])
        won += max(0.0, survival - source.further)
    tokens = min(text.request.room, AHEAD)
    return won > 0 and won / (1 + won) * tokens > 2 * reading


def first_look(sources: Sequence[Source], text: Text) -> int:
    """The step at which all sources are asked for a text for the first time."""
    asked = [0 if source.free else text.due[number] for number, source in unglanced(sources)]
    return min(asked, default=FULL)


def unglanced(sources: Sequence[Source]) -> list[tuple[int, Source]]:
    """Those that no glance tells of, with their numbers."""
    return [
        (number, source)
        for number, source in enumerate(sources)
        if not (source.free and source.drafter.glanced)
    ]


def next_look(asked: Sequence[tuple[int, Source]], text: Text, price: Price, bother: float) -> int:
    """The step at which all sources are asked for a text, whatever a glance tells.

    asked: of all sources the `unglanced` ones.
    """
    steps = text.steps + FULL
    soon = text.steps + (1 if text.brings > bother else PROBE)
    for number, source in asked:
        if not text.may_ask(number, source.name):
            continue
        if source.free:
            steps = min(steps, soon)
            continue
        prompt, written = _reading(number, source, text)
        offer = text.step.offer or Offer.to(text.request, text.step.weight)
        if prompt > source.funds.left or offer.depth <= 0:
            continue
        lacking = text.steps + text.wait(source.cost + written + price.likely(1) + RESERVE)
        cost = _calls(source, text.step.texts) / text.step.texts
        pays = _worth(number, source, text, offer, price) > price.rate * cost
        pays = pays and not pausing.rests(number, text)
        due = soon if pays else text.due[number]
        due = max(due, text.steps + source.funds.lacks(price.unit))
        if text.step.asked(number):
            due = min(due, text.steps + SOON)  # it is not learnt from before that
        steps = min(steps, max(due, lacking, soon if pays else text.steps + 1))
    return steps


def _worth(number: int, source: Source, text: Text, offer: Offer, price: Price) -> float:
    """Of a draft, but for what its first token takes, which comes with the others'."""
    recent, grows = text.recent[number], source.drafter.stepwise
    total = best = gain(source, recent, text, offer, 1.0, 1, price)
    level = price.rate * source.further / text.step.texts if grows else 0.0
    survival = 1.0
    for depth in range(1, DEPTHS):
        survival *= source.expected(depth, recent)
        more = gain(source, recent, text, offer, survival, depth + 1, price) - level
        if grows and more <= 0:  # it would end there
            break
        total += more
        best = max(best, total)
    return best


def _due(number: int, source: Source, text: Text) -> bool:
    """Whether a source that does not pay is looked at again: sooner where it was right."""
    prompt, written = _reading(number, source, text)
    waited = text.steps >= text.due[number] and prompt <= source.funds.left
    return waited and text.left > source.cost + written + RESERVE


def _reading(number: int, source: Source, text: Text) -> tuple[float, float]:
    """What it takes to read what the source missed: of the prompt, and of what was written."""
    prompt, written = text.missed(number)
    return prompt * source.further / READ, written * source.further / READ
