"""Whole drafts natively: what they offer, run and learn is what asking text by text does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
import fakes
from draftproof.drafting.allotting import Allotting, allot
from draftproof.drafting.asking import Asking
from draftproof.drafting.base import Drafter
from draftproof.drafting.looking import Looking
from draftproof.drafting.lookups import LookUps
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.drafting.settling import planned, settle
from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text
from draftproof.native import found
from draftproof.request import Request

pytestmark = pytest.mark.skipif(found() is None, reason="the native kernels were not built")
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
MORE = st.lists(st.integers(0, 3), max_size=12)
CURVE = tuple([0.0, *(1 + 0.08 * rows for rows in range(12))])
PRICE = Price(1.1, 2, CURVE, CURVE, attention=1e-4)
ROUGHLY = 1e-12


class Side:
    """A batch and its sources. earlier: what a text before them wrote."""

    def __init__(self, earlier: list[int], prompts: Sequence[list[int]], **options: Any) -> None:
        drafters = fakes.look_ups(earlier, **options)
        self.sources = [Source(each, each.name, lambda: 0.0) for each in drafters]
        self.asking, looking = Asking(self.sources, 4), Looking(self.sources, [0, 1])
        self.lookups = LookUps(self.sources, looking, 4)
        requests = [fakes.request(key, each, max_tokens=80) for key, each in enumerate(prompts)]
        self.texts = [Text(each, len(each.tokens), [4, 4], 0.2) for each in requests]

    def made(self, number: int, without: set[int], watched: bool) -> None:
        """A text without some of the sources, and maybe with somebody who looks on."""
        text = self.texts[number]
        text.failed, text.request.watched = set(without), [] if watched else None

    def write(self, more: Sequence[list[int]]) -> None:
        for text, tokens in zip(self.texts, more, strict=True):
            text.request.tokens += tokens
            text.request.passes += 1
        self.lookups.learn(self.texts)
        for text in self.texts:
            settle(text, self.sources, 0.01)

    def known(self) -> list[Any]:
        calibrations = [source.calibration(self.texts[0].request) for source in self.sources]
        return [
            [
                *each.weights,
                *each.variances,
                *source.reach,
                *(text.recent[n] for text in self.texts),
            ]
            for n, (each, source) in enumerate(zip(calibrations, self.sources, strict=True))
        ]

    def counted(self) -> list[Any]:
        shares = [text.request.decisions.sources for text in self.texts]
        nodes = [{name: (each.offered, each.used) for name, each in s.items()} for s in shares]
        return [nodes, [(text.deep, text.vain, [*text.read]) for text in self.texts]]


def same_runs(text: Text, slow: Text, sources: Sequence[Source]) -> None:
    """What is planned for both, whose nodes are chosen."""
    runs, ran = planned(text, sources), planned(slow, sources)
    assert (runs.tokens, runs.parents) == (ran.tokens, ran.parents)
    assert runs.scores == (ran.scores and pytest.approx(ran.scores, rel=ROUGHLY))
    assert text.step.drafted_by == slow.step.drafted_by
    assert text.request.planned == slow.request.planned


@given(
    TOKENS,
    st.lists(TOKENS, min_size=1, max_size=3),
    st.data(),
    st.sampled_from([{}, {"num_draft_tokens": 3}]),
)
def test_native_drafts_are_the_slow_ones(
    earlier: list[int], prompts: list[list[int]], data: st.DataObject, options: dict[str, int]
) -> None:
    fast, slow = Side(earlier, prompts, **options), Side(earlier, prompts, **options)
    for number in range(len(prompts)):
        without = data.draw(st.sets(st.integers(0, 1), max_size=1))
        fast.made(number, without, watched := data.draw(st.booleans()))
        slow.made(number, without, watched)
    for _ in range(data.draw(st.integers(1, 8))):
        useful = data.draw(st.integers(0, 20))
        looks = fast.lookups.of(fast.texts)
        assert looks is not None
        assert fast.lookups.draft(fast.texts, looks, useful, PRICE.least, 0.01) is not None
        offers = [Offer.to(text.request, text.step.weight) for text in slow.texts]
        for source in slow.sources:
            source.drafter.useful = useful
        slow.asking.free(slow.texts, offers, PRICE, 0.01)
        for text, each, offer in zip(fast.texts, looks, offers, strict=True):
            merged = Offer.to(text.request, text.step.weight, each)
            for name in ("tokens", "parents", "owners", "depths", "depth", "limit"):
                assert getattr(merged, name) == getattr(offer, name), name
            assert merged.chances == pytest.approx(offer.chances, rel=ROUGHLY)
        lefts = [data.draw(st.floats(-0.1, 1)) for _ in prompts]
        bets = [data.draw(st.floats(-0.1, 0.5)) for _ in prompts]
        left = data.draw(st.floats(0, 2))
        made = Allotting().allot(fast.texts, looks, lefts, bets, PRICE, left)
        assert made is not None
        kept, brings = made
        lengths = [text.length for text in slow.texts]
        expected, bring = allot(offers, lengths, lefts, bets, PRICE, left)
        assert kept == expected and brings == pytest.approx(bring, rel=ROUGHLY)
        for text, old, own, offer in zip(fast.texts, slow.texts, kept, offers, strict=True):
            text.step.kept, old.step.kept, old.step.offer = own, own, offer
            same_runs(text, old, fast.sources)
        assert fast.counted() == slow.counted()
        if data.draw(st.booleans()):  # a glance in between changes nothing of it
            for side in (fast, slow):
                together = side.lookups.looking.together(side.texts, PRICE, each=0.25)
                assert together is not None and together.surplus([True] * len(prompts))
        more = [data.draw(MORE) for _ in prompts]
        fast.write(more)
        slow.write(more)
        assert fast.counted() == slow.counted()
        for one, other in zip(fast.known(), slow.known(), strict=True):
            assert one == pytest.approx(other, rel=ROUGHLY, abs=ROUGHLY)


def one_text(**options: Any) -> tuple[Side, Request]:
    side = Side([], [[1, 2, 3, 1, 2, 3, 1, 2]], **options)
    request: Any = side.texts[0].request
    return side, request


class Other(Drafter):
    """Free, and not looked at natively."""

    name = "other"


@pytest.mark.parametrize(
    "change",
    [
        lambda side: setattr(side.texts[0].request, "speculate", "ngram"),
        lambda side: side.texts[0].request.params.__dict__.update(max_tokens=1),
        lambda side: setattr(side.texts[0].request, "rewinds", 1),
        lambda side: setattr(side.sources[0], "cost", 1.0),
        lambda side: side.sources.append(Source(Other(), "other")),
    ],
)
def test_what_is_not_drafted_natively(change: Any) -> None:
    side, _ = one_text()
    assert side.lookups.of(side.texts) is not None
    change(side)
    assert side.lookups.of(side.texts) is None


def test_a_source_that_failed_for_a_text_is_asked_no_more() -> None:
    side, _ = one_text()
    side.texts[0].failed.add(0)
    looks = side.lookups.of(side.texts)
    assert looks is not None
    side.lookups.draft(side.texts, looks, 8, 0.01, 0.01)
    assert [*side.texts[0].request.decisions.sources] == ["suffix"]
    assert side.texts[0].step.asked(1) and not side.texts[0].step.asked(0)


def test_a_token_outside_of_the_vocabulary_is_left_to_who_tells_of_it() -> None:
    side, _ = one_text()
    side.lookups.vocabulary = 3
    looks = side.lookups.of(side.texts)
    assert looks is not None
    assert side.lookups.draft(side.texts, looks, 8, 0.01, 0.01) is None
    assert side.texts[0].step.looks is None and not side.texts[0].spent


@pytest.mark.parametrize(
    "drafter", [dp.NGram(1 << 40), dp.NGram(branches=1 << 40), dp.SuffixAutomaton(1 << 40)]
)
def test_room_is_taken_for_what_can_be_of_use(drafter: Any) -> None:
    drafter.bind(None, None)
    request = fakes.request(0, [1, 2, 3, 1, 2, 3, 1, 2])
    text = Text(request, len(request.tokens), [4], 0.2)
    (looks,) = Looking([Source(drafter, "one")], [0]).all([text])
    assert looks is not None and 1 < looks.merged.nodes < 10_000


def test_a_draft_larger_than_is_looked_at_is_told_of() -> None:
    side, request = one_text(num_draft_tokens=300)
    request.tokens += [*range(4, 400), 1, 2, 3, *range(4, 10)]
    request.params = dp.SamplingParams(max_tokens=2000)
    side.lookups.vocabulary = 400
    looks = side.lookups.of(side.texts)
    assert looks is not None
    assert side.lookups.draft(side.texts, looks, 400, 0.0, 0.01) is not None
    (warning,) = [each for each in request.warnings if "ngram" in each]
    assert "256 are looked at" in warning
    assert max(looks[0].merged.taken()[3]) == 256


class Failing:
    """Native code without memory for drafts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return (lambda *given: -1) if name == self.name else getattr(found(), name)


@pytest.mark.parametrize(("where", "name"), [("lookups", "dp_draft"), ("allotting", "dp_allot")])
def test_without_memory_texts_are_asked_for_one_by_one(
    where: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = dp.LLM("bundled", speculate=dp.Auto("ngram", "suffix", clock=lambda: 0.0))
    params = dp.SamplingParams(max_tokens=60)
    (plain,) = dp.LLM(llm, speculate=None).generate("def push(self, item):", params)
    monkeypatch.setattr(f"draftproof.drafting.{where}.natively", lambda: Failing(name))
    (out,) = llm.generate("def push(self, item):", params)
    assert out.token_ids == plain.token_ids and not out.warnings
    assert sum(each.offered for each in out.stats.decisions.sources.values()) > 0


@pytest.mark.parametrize("how", ["natively", "one by one"])
def test_what_was_glanced_at_and_drafted_is_learnt_from_once(how: str) -> None:
    side, request = one_text()
    looking, calibration = side.lookups.looking, side.sources[0].calibration(request)
    together = looking.together(side.texts, PRICE, each=0.25)
    looks = side.lookups.of(side.texts)
    assert together is not None and looks is not None
    together.surplus([True])
    if how == "natively":
        side.lookups.draft(side.texts, looks, 1, 0.01, 0.01)
    else:
        side.asking.free(side.texts, [Offer.to(request, 1.0)], PRICE, 0.01)
    side.texts[0].asked(0.0, 0.0)
    side.write([[3]])
    once = calibration.weights[:]
    together.surplus([True])
    assert calibration.weights[:] == once != [1.1, -0.9, 0.4, 3.0]
