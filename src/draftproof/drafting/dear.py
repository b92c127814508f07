"""Sources whose drafting takes passes of its own: when one is asked, and how deep its drafts grow.

Asked for another token only where that token, beyond what the others offer already, is expected to
bring more than its price. One that does not pay is looked at again in the shadow: its draft is
compared with what is written, and never run.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting import pausing
from draftproof.drafting.deepening import RESERVE, Chosen
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.sources import SOON, Source
from draftproof.drafting.text import FULL, PROBE, Text
from draftproof.drafting.worth import calls, reading, worth

AMORTISED = 8  # steps over which it is paid that a draft has to read what it missed


def chosen(
    number: int, source: Source, texts: Sequence[Text], offers: Sequence[Offer], price: Price
) -> tuple[Chosen, bool]:
    """The texts that a source drafts for in this step; whether it does so in the shadow."""
    able = [
        (text, offer)
        for text, offer in zip(texts, offers, strict=True)
        if text.may_ask(number, source.name) and offer.limit > 0 and offer.depth > 0
    ]
    paying = _paying(number, source, able, price, len(able))
    if 0 < len(paying) < len(able):  # fewer share what further levels take
        paying = _paying(number, source, able, price, len(paying))
    paying.sort(key=lambda each: -each[0])
    while paying:  # a first token for each, what it missed read, and its row
        takes = calls(source, len(paying)) + sum([each[1] for each in paying])
        if takes + price.likely(len(paying)) <= price.left:
            break
        paying.pop()
    if sum([each[0] for each in paying]) > price.rate * calls(source, len(paying)):
        for _, _, text, _ in paying:
            pausing.go_on(number, text)
        return {text.request.key: (text, offer) for _, _, text, offer in paying}, False
    due, left, funds = Chosen(), price.left, source.funds.left
    for text, offer in zip(texts, offers, strict=True):
        prompt, written = reading(number, source, text)
        if (
            text.may_ask(number, source.name)
            and offer.depth > 0
            and text.steps >= text.due[number]
            and prompt <= funds
            and min(text.left, left) > source.cost + written + RESERVE
        ):
            due[text.request.key] = text, offer
            pausing.put_off(number, text)
            left -= written + (0.0 if source.drafter.stepwise else source.cost)
            funds -= prompt
    return due, True


def _paying(
    number: int, source: Source, able: Sequence[tuple[Text, Offer]], price: Price, sharing: int
) -> list[tuple[float, float, Text, Offer]]:
    """Those for which a draft is expected to pay.

    With what it brings, its first token unpaid, and what reading takes of what was written.
    """
    paying, funds = list[tuple[float, float, Text, Offer]](), source.funds.left
    for text, offer in able:
        prompt, written = reading(number, source, text)
        first = worth(number, source, text, offer, price, sharing)
        first -= price.rate * (prompt + written) / AMORTISED
        if (
            first > 0
            and not pausing.rests(number, text)
            and prompt <= funds
            and text.left > source.cost + written + price.likely(1) + RESERVE
        ):
            paying.append((first, written, text, offer))
            funds -= prompt
    return paying


def may_try(source: Source) -> bool:
    """Whether it is dear, and has what pays for a try."""
    return not source.free and source.funds.left >= 0


def first_look(sources: Sequence[Source], text: Text) -> int:
    """The step at which all sources are asked for a text for the first time."""
    asked = [each for each in unglanced(sources) if text.may_ask(each[0], each[1].name)]
    return min([0 if source.free else text.due[number] for number, source in asked], default=FULL)


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
        prompt, written = reading(number, source, text)
        offer = text.step.offer or Offer.to(text.request, text.step.weight)
        if offer.depth <= 0:
            continue
        lacking = text.steps + text.wait(source.cost + written + price.likely(1) + RESERVE)
        sharing = text.step.texts
        cost = calls(source, sharing) / sharing
        pays = worth(number, source, text, offer, price, sharing) > price.rate * cost
        pays = pays and not pausing.rests(number, text)
        due = soon if pays else text.due[number]
        if text.step.asked(number):
            due = min(due, text.steps + SOON)  # it is not learnt from before that
        due = max(due, text.steps + source.funds.lacks(price.unit, prompt))
        steps = min(steps, max(due, lacking, soon if pays else text.steps + 1))
    return steps
