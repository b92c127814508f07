"""What a step is charged with, who pays for what, and what users are told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import draftproof as dp
from drafters import NATIVE
from draftproof.counts import AGAIN, LAST
from draftproof.drafting import planning
from draftproof.drafting.account import ADVANCE, Books
from draftproof.drafting.control import Control
from draftproof.drafting.sources import Source
from draftproof.drafting.text import Text
from draftproof.drafting.worth import reading_pays
from draftproof.tree import TokenTree
from draftproof.writing import Writing
from simulated import Clock, Guesser

HOPELESS = dp.SamplingParams(temperature=2.0, seed=1, max_tokens=40)
REPEATING = "x = 1\ny = 2\n" * 20


def watched(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[Control, Sequence[Writing]], None]
) -> None:
    """Look at the controller behind each of its decisions."""
    propose = Control.propose

    def proposed(self: Control, requests: Sequence[Writing]) -> list[TokenTree]:
        trees = propose(self, requests)
        look(self, requests)
        return trees

    monkeypatch.setattr(Control, "propose", proposed)


def test_a_text_that_wants_no_drafts_ends_no_rest_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = []
    watched(monkeypatch, lambda control, requests: decided.append(len(requests)))
    plain = dp.SamplingParams(temperature=2.0, seed=2, max_tokens=40, speculate=False)
    with dp.LLM("bundled", speculate=dp.Auto("ngram", clock=Clock())) as llm:
        llm.generate(["one", "two"], [HOPELESS, HOPELESS])
        both = len(decided)
        llm.generate(["one", "two"], [HOPELESS, plain])
    assert len(decided) - both <= 1.5 * both < 20


def test_a_batch_that_begins_anew_owes_nothing() -> None:
    """What texts before it lost in their last steps is not booked on it."""
    books = Books()
    books.plan(5.0, 1.0)
    books.late = -2.0
    assert books.begin(alone=True) == 0.0
    books.settle(0.0, 1)
    assert books.left == pytest.approx(ADVANCE)


def test_the_rest_of_a_prompt_is_read_along_where_its_beginning_was() -> None:
    guesser = Guesser({}, {}, Clock(), price=0.1)
    guesser.stepwise, guesser.promise = True, 0.95
    source = Source(guesser, "draft", Clock())
    source.cost = source.further = 0.25  # dear
    request = Writing(0, [1] * 190, dp.SamplingParams(max_tokens=300), seed=0, rule=None)
    text = Text(request, 190, [4], 0.2)
    assert not source.free and reading_pays(0, source, text)
    source.funds.left = 0.0  # it is paid for
    assert not reading_pays(0, source, text)
    text.read[0] = 190
    assert reading_pays(0, source, text)


@pytest.mark.parametrize("natively", [pytest.param(True, marks=NATIVE), False])
def test_what_a_glance_has_read_is_not_read_again(
    natively: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft of some microseconds would else seem to have read a prompt in them."""
    if not natively:
        monkeypatch.setattr("draftproof.drafting.looking.looks_natively", lambda: False)
    seen = list[tuple[int, int]]()
    took = Source.took

    def told(self: Source, seconds: float, drafts: int, one: float, missed: Any) -> float:
        seen.extend(missed)
        return took(self, seconds, drafts, one, missed)

    monkeypatch.setattr(Source, "took", told)
    with dp.LLM("bundled", speculate=dp.Auto("ngram", clock=Clock())) as llm:
        llm.generate(REPEATING, dp.SamplingParams(max_tokens=40))
    assert seen and not any([prompt for prompt, _ in seen])


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_batch_pays_what_its_texts_pay(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of drafts and what they attend to, whoever settled which nodes run."""
    paid = list[tuple[float, float, int]]()

    def look(control: Control, requests: Sequence[Writing]) -> None:
        steps = [control.text(request).step for request in requests]
        nodes = sum([len(step.kept) - 1 for step in steps])
        planned, _ = control.books._planned
        paid.append((sum([step.extra for step in steps]), planned, nodes))

    watched(monkeypatch, look)
    params = dp.SamplingParams(max_tokens=40, temperature=0.3, seed=3)
    with dp.LLM("bundled", rule=rule, speculate=dp.Auto("ngram", clock=Clock())) as llm:
        llm.generate([REPEATING, REPEATING + "z"], params)
    for extra, planned, nodes in paid:
        assert extra == pytest.approx(planned)
        assert not nodes or extra > 0
    assert any([nodes for *_, nodes in paid])


def test_a_step_is_told_why_it_was_plain() -> None:
    with dp.LLM("bundled", speculate="ngram") as llm:
        (request,) = llm.submit(REPEATING, dp.SamplingParams(max_tokens=12))
        request.watched = []
        while not request.finished:
            llm.engine.step()
        told = [step.why for step in request.watched]
        assert told[-1] == LAST or len(request.watched[-1].tree) > 1
        request.planned = (), "stale"
        llm.engine.drafts.undrafted(request, TokenTree.chain([1, 2]))
        assert request.planned == ((), AGAIN)


class Nobody(dp.NGram):
    """Dear, and of no use to any text."""

    name, glanced, drafting_cost, stepwise = "nobody", False, 0.5, True

    def serves(self, request: Writing) -> bool:
        return False


@NATIVE
def test_a_dear_source_that_serves_no_text_slows_no_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[Text]()
    offered = planning.offered
    monkeypatch.setattr(planning, "offered", lambda text: made.append(text) or offered(text))
    asked = []
    watched(monkeypatch, lambda control, requests: asked.append(control.text(requests[0]).full))
    with dp.LLM("bundled", speculate=dp.Auto("ngram", Nobody(), clock=Clock())) as llm:
        (done,) = llm.generate(REPEATING, dp.SamplingParams(max_tokens=60))
    assert done.stats.accepted and not made and asked[0] > 1
