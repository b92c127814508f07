"""Glances natively: what they find and learn is what looking text by text finds and learns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
import fakes
from draftproof.drafting.calibration import Calibration
from draftproof.drafting.following import Following
from draftproof.drafting.glancing import AHEAD
from draftproof.drafting.looking import Looking
from draftproof.drafting.ngrams import NGrams
from draftproof.drafting.price import Price
from draftproof.drafting.sources import REACH, RECENT, Source
from draftproof.drafting.text import Text
from draftproof.native import found

pytestmark = pytest.mark.skipif(found() is None, reason="the native kernels were not built")
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
STEPS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=12)
PRICE = Price(rate=1.1, rows=1, curve=(0.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8))


class Slow:
    """One look-up of one text, in Python: guesses, and learns from what is written then."""

    def __init__(self, source: Source, draft: Any) -> None:
        drafter: Any = source.drafter
        self.draft, self.calibration = draft, Calibration(drafter.trust)
        self.reach, self.recent = [drafter.promise] * 16, 0.0
        self.guess: tuple[int, float] | None = None

    def write(self, text: list[int], more: list[int], told: bool) -> None:
        for token in more if told else ():
            if self.guess is not None:
                right = token == self.guess[0]
                expected = self.calibration.learn(self.guess[1], 1, self.recent, right)
                self.reach[0] += (right - self.reach[0]) * REACH
                self.recent += (right - expected - self.recent) * RECENT
            text = [*text, token]
            self.guess = self.draft(text)
        if not told:
            self.guess = self.draft([*text, *more])

    def more(self) -> float:
        found, survival = 0.0, 1.0
        source = Source(dp.NGram(), "ngram")
        source.reach[:] = self.reach
        for depth in range(2, AHEAD + 2):
            survival *= source.expected(depth, self.recent)
            found += survival
        return found


def ngram(text: list[int]) -> tuple[int, float] | None:
    tokens, _, scores = NGrams(2).draft(0, text, 1, 4, 1)
    return (tokens[1], scores[1]) if len(tokens) > 1 else None


def suffix(earlier: list[int], text: list[int]) -> tuple[int, float] | None:
    new, old = Following(), Following()
    new.extend([*earlier, -1] if earlier else [])
    tokens, _, shares = Following().draft(0, text, (new, old), 64, 2, 1, 1, 0.1)
    return (tokens[0], shares[0]) if tokens else None


@given(TOKENS, TOKENS, STEPS, st.data())
def test_a_native_glance_is_the_slow_one(
    earlier: list[int], prompt: list[int], steps: list[list[int]], data: st.DataObject
) -> None:
    """Whatever was asked in between, which takes the look-ups along and is learnt from itself."""
    drafters = fakes.look_ups(earlier)
    sources = [Source(drafter, drafter.name) for drafter in drafters]
    slow = [Slow(sources[0], ngram), Slow(sources[1], lambda text: suffix(earlier, text))]
    request = fakes.request(0, prompt, max_tokens=500)
    text = Text(request, len(request.tokens), [4, 4], 0.2)
    together = Looking(sources, range(2)).together([text], PRICE, each=0.25)
    assert together is not None
    written, fresh, told = list[int](), list(prompt), False
    for more in [[], *steps]:
        request.tokens += more
        fresh += more
        if more and data.draw(st.booleans()):  # it is asked
            drafters[data.draw(st.integers(0, 1))].propose([request])
            for each in drafters:
                each.propose([request])
            written, fresh, told = list(request.tokens), [], False
            continue
        (surplus,) = together.surplus([True])
        first = 0.0
        for each in slow:
            each.write(written, fresh, told and len(fresh) <= 8)
            if each.guess is not None:
                first = max(first, each.calibration.chance(each.guess[1], 1, each.recent))
        gain = first - PRICE.row
        if gain > 0:
            gain *= 1 + max(each.more() for each in slow if each.guess is not None)
        assert surplus == pytest.approx(gain - PRICE.rate * 0.25)
        for number, (each, source) in enumerate(zip(slow, sources, strict=True)):
            looks: Any = text.looks
            look = looks.all[looks.numbers.index(number)]
            assert (look.guess, look.guess >= 0 and look.score) == (
                (each.guess[0], pytest.approx(each.guess[1])) if each.guess else (-1, False)
            )
            calibration = source.calibration(request)
            assert text.recent[number] == pytest.approx(each.recent)
            assert calibration.weights[:] == pytest.approx(each.calibration.weights[:])
            assert calibration.variances[:] == pytest.approx(each.calibration.variances[:])
            assert source.reach[:] == pytest.approx(each.reach)
        written, fresh, told = list(request.tokens), [], True


def test_a_text_that_cannot_pay_is_learnt_from_and_promises_nothing() -> None:
    source = Source(dp.NGram(), "ngram")
    source.drafter.bind(None, None)  # type: ignore[arg-type]
    requests = [fakes.request(key, [1, 2, 3, 1, 2, 3, 1, 2], max_tokens=50) for key in range(2)]
    texts = [Text(request, len(request.tokens), [4], 0.2) for request in requests]
    together = Looking([source], [0]).together(texts, PRICE, each=0.05)
    assert together is not None
    poor, rich = together.surplus([False, True])
    assert poor < 0 < rich
    for request in requests:
        request.tokens.append(3)
    together.surplus([False, True])
    assert texts[0].recent[0] > 0 and texts[1].recent[0] > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: setattr(text.request, "speculate", "ngram"),
        lambda text: text.failed.add(0),
        lambda text: text.request.params.__dict__.update(max_tokens=1),
    ],
)
def test_a_text_that_may_not_be_drafted_for_is_not_looked_at_natively(change: Any) -> None:
    source = Source(dp.NGram(), "ngram")
    source.drafter.bind(None, None)  # type: ignore[arg-type]
    request = fakes.request(0, [1, 2, 1, 2])
    text = Text(request, len(request.tokens), [4], 0.2)
    change(text)
    assert Looking([source], [0]).together([text], PRICE, each=0.05) is None
