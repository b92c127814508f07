"""Short texts one after another, and models whose passes are as short as a look at the sources."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

import draftproof as dp
import fakes
from draftproof.drafting.account import ADVANCE, SAVINGS, SHARE, Books
from draftproof.drafting.glancing import Glances
from draftproof.drafting.price import Price
from draftproof.drafting.resting import Rests
from draftproof.drafting.text import Text
from draftproof.proposers.auto import Auto
from simulated import (
    ONE,
    STEEP,
    Clock,
    Guesser,
    Machine,
    Trace,
    known,
    texts,
)

FREE = 0.005  # passes that drafting a token takes

JUMP = ((1, 1.0), (2, 1.35), (8, 1.4), (64, 4.0))  # a second row is dear, and more are not


def one_after_another(kinds: list[str], price: float, clock: Clock | None = None) -> float:
    """What 24 texts of 45 tokens take, of what they take plainly."""
    truths, clock = texts(24, 45), clock or Clock()
    traces = {n: Trace.made(kinds[n % len(kinds)], 46, n) for n in range(24)}
    guesser = Guesser(traces, dict(enumerate(truths)), clock, price=price)
    machine, arrivals = Machine(JUMP, clock), [46 * n for n in range(24)]
    auto = Auto(guesser, clock=clock)
    run = machine.run(auto, truths, table=known(JUMP), arrivals=arrivals)
    assert [request.tokens for request in run.requests] == truths
    return run.total / (24 * 44)


def test_short_texts_go_by_what_those_before_them_won() -> None:
    """Or each would be over before it dared to look again behind a first draft that failed."""
    assert one_after_another(["easy"], FREE) < 0.33
    assert one_after_another(["easy"], 0.1) < 0.6
    assert one_after_another(["hopeless"], FREE) < 1.03
    assert one_after_another(["easy", "hopeless"], FREE) < 0.7
    assert one_after_another(["easy", "hopeless"], 0.1) < 1.01


def test_what_texts_before_won_may_be_lost_once_and_no_more() -> None:
    """Half a pass and a hundredth that every text may lose, three passes more, and a try of one."""
    books = Books()
    for saved in (1.0, 50.0, 1000.0):
        books.end(saved)
    assert books.begin(alone=True) == SAVINGS
    truths, clock = texts(25, 45), Clock()
    traces = {n: Trace.made("easy", 46, n) for n in range(24)}
    traces[24] = Trace([False] * 46, traces[0].score)  # as sure as those before it, and all wrong
    guesser = Guesser(traces, dict(enumerate(truths)), clock, price=FREE)
    machine, arrivals = Machine(JUMP, clock), [46 * n for n in range(25)]
    auto = Auto(guesser, clock=clock)
    run = machine.run(auto, truths, table=known(JUMP), arrivals=arrivals)
    lost = run.seconds[24] - 45 * (1 + SHARE)
    assert ADVANCE < lost < ADVANCE + SAVINGS + 0.5


class Busy(Clock):
    """A clock by which deciding takes time: whoever looks at it has taken a part of a pass."""

    def __init__(self, part: float = 0.02) -> None:
        super().__init__()
        self.part = part

    def __call__(self) -> float:
        self.now += self.part * ONE
        return self.now


def test_where_deciding_is_very_dear_good_texts_still_win_one_after_another() -> None:
    """None waits for what the one before it lost, nor is a glance paid for twice."""
    easy = one_after_another(["easy"], FREE, Busy(0.04))
    mixed = one_after_another(["hard", "easy"], FREE, Busy(0.04))
    hopeless = one_after_another(["hopeless"], FREE, Busy(0.04))
    assert easy < 0.4 and mixed < 1.01 and hopeless < 1.05


def test_a_stall_does_not_end_all_asking() -> None:
    rests = Rests(Glances([], 10, Clock()))
    for _ in range(3):
        rests.bother.took(300.0, 300.0)  # passes, as a collection of garbage takes
    assert rests.bother.share(1) < 0.2


@pytest.mark.parametrize("kind", ["easy", "hopeless"])
def test_where_deciding_is_dear_a_good_source_still_drafts(kind: str) -> None:
    """As on a model whose pass takes a millisecond: a look that no node can follow is not made."""
    (truth,) = texts(1, 400)
    trace, clock = Trace.made(kind, 401, 0), Busy()
    guesser = Guesser({0: trace}, {0: truth}, clock, price=FREE)
    run = Machine(STEEP, clock).run(Auto(guesser, clock=clock), [truth], table=known(STEEP))
    assert run.total <= (400 / 1.5 if kind == "easy" else 400 / 0.98)


def resting(count: int) -> tuple[Rests, list[Text], Price]:
    """Texts that all promise something; asking takes a fifth of a pass, and as much for each."""
    rests = Rests(Glances([], 10, Clock()))
    rests.bother.once = rests.bother.each = 0.2
    writing = [Text(fakes.request(key, [1, 2]), 2, [], 0.2) for key in range(count)]
    for text in writing:
        text.ran, text.account.debt = True, -10.0
    curve = [1 + 0.1 * row for row in range(32)]
    return rests, writing, Price(1.0, count, curve, curve, curve[count], soon=count)


def test_a_batch_asks_for_as_many_texts_as_it_can_pay_for() -> None:
    """Else all are asked in vain, as none of their drafts can run, again and again."""
    rests, writing, price = resting(8)
    for number, text in enumerate(writing):
        text.hopes = number
    assert rests.asked(writing, replace(price, left=0.2 + 8 * 0.3 + 0.01), new=False) == writing
    assert rests.asked(writing, replace(price, left=0.2 + 3 * 0.3 + 0.01), new=False) == writing[5:]
    assert rests.asked(writing, replace(price, left=0.4), new=False) == []
    assert {text.step.why for text in writing} == {"debt"}


def test_a_batch_waits_until_it_can_pay_for_glances_too() -> None:
    """Else they take what was spared, and it is never enough to ask."""
    waits = []
    for cost in (0.0, 0.1):
        rests, writing, price = resting(8)
        rests.glances.cost = cost
        assert not rests.asked(writing, replace(price, left=0.4), new=False)
        waits.append((writing[0].able - writing[0].steps) * SHARE * price.unit)
    assert waits[0] == pytest.approx(0.1, abs=0.02)
    assert waits[1] == pytest.approx(0.1 + 8 * 0.1, abs=0.02)


def test_what_has_ended_is_held_by_nobody() -> None:
    """Nor are those that rested with it."""
    llm = dp.LLM("bundled", speculate=dp.Auto("ngram", clock=Clock()))
    params = dp.SamplingParams(max_tokens=8, temperature=1.0, seed=1)
    ended = [weakref.ref(request) for key in "ab" for request in llm.submit(f"{key} = 1", params)]
    while any([llm.engine.scheduler.running, llm.engine.scheduler.waiting]):
        llm.engine.step()
    gc.collect()
    assert [each() for each in ended] == [None, None]


def test_a_batch_that_is_passed_over_reckons_with_its_own_texts() -> None:
    """Not with how many rested last."""
    waits = []
    for rested in (1, 8):
        rests, writing, price = resting(8)
        rests.begin([*range(rested)], writing[:rested], price)
        for text in writing:
            text.ran, text.full, text.ask, text.account.debt = False, 9, 0, 0.1
        assert not rests.asked(writing, replace(price, left=100.0), new=False)
        waits.append([text.able for text in writing])
    assert waits[0] == waits[1]
