"""What asking a source takes is learnt apart: a first token, and what goes on behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftproof.drafting.account import GIVEN, LOAN, Funds
from draftproof.drafting.asking_cost import TOLD, AskingCost
from draftproof.drafting.sources import Source
from draftproof.proposers.auto import Auto
from simulated import FLAT, Clock, Guesser, Machine, Trace, fixed, known, made, texts

CALL, LEVEL = 0.4, 0.05  # passes of a call and of each level


def guesser(kind: str, length: int, clock: Clock, price: float = LEVEL) -> Guesser:
    (truth,) = texts(1, length)
    trace = Trace.made(kind, length + 1, 1)
    return Guesser({0: trace}, {0: truth}, clock, price=price, call=CALL)


def asked(source: Source, levels: int, missed: tuple[int, int] = (0, 0)) -> float:
    """A draft of so many levels; what it is said to take."""

    def goes_on(grown: Sequence[object]) -> list[bool]:
        return [len(one.tokens) <= levels for one in grown]

    request = made(0, texts(1, 60)[0])
    return source.propose([request], goes_on, 0.01, [missed])[1]


def test_a_first_token_and_what_follows_are_told_apart() -> None:
    clock = Clock()
    source = Source(guesser("easy", 60, clock), "guesser", clock)
    for number in range(60):
        took = asked(source, 1 + number % 4)
    assert source.cost == pytest.approx(CALL + LEVEL, rel=0.05)
    assert source.further == pytest.approx(LEVEL, rel=0.05)
    assert took == pytest.approx(source.cost + 3 * source.further)


def test_where_no_draft_went_on_another_token_is_thought_to_take_as_long() -> None:
    clock = Clock()
    source = Source(guesser("easy", 60, clock), "guesser", clock)
    for _ in range(40):
        asked(source, 1)
    assert not source.asking.known
    assert source.further == source.cost == pytest.approx(CALL + LEVEL, rel=0.05)
    for _ in range(TOLD):
        asked(source, 2)
    assert source.asking.known and source.further == pytest.approx(LEVEL, rel=0.05)


def test_what_was_missed_is_no_part_of_a_token() -> None:
    cost = AskingCost(0.2, grows=True)
    cost.learn_apart((0.4, 1), (0.0, 0), read=1.0)
    assert cost.first == pytest.approx(0.2)  # half of it was for reading as much as a level takes
    for _ in range(99):  # a token is half of it at least, or a draft that reads fast seemed free
        cost.learn_apart((0.2, 1), (0.0, 0), read=20.0)
    assert cost.first == pytest.approx(0.1, rel=1e-3)


def test_a_stall_and_a_clock_that_stands_still_are_bounded() -> None:
    cost = AskingCost(0.1, grows=True)
    cost.learn_apart((1e9, 1), (1e9, 2), read=0.0)
    assert 0.1 < cost.first < 0.2 and 0.1 < cost.further < 0.5
    for _ in range(500):
        cost.learn_apart((0.0, 1), (0.0, 1), read=0.0)
        cost.learn(0.0, 3)
    assert 0 <= cost.first < 1e-6 and 0 <= cost.further < 1e-6
    for _ in range(50):  # and it is not believed for ever
        cost.learn(0.4, 4)
    assert cost.of(4) == pytest.approx(0.4, rel=0.05)


def test_a_source_that_brings_nothing_takes_its_loan_and_what_it_is_given() -> None:
    funds = Funds()
    funds.spend(LOAN + 0.5)
    assert funds.lacks(1.0) == pytest.approx(0.5 / GIVEN)
    assert funds.lacks(2.0) == pytest.approx(0.25 / GIVEN)
    funds.earn(100 * GIVEN + 0.25)
    assert funds.left > 0 and funds.lacks(1.0) == 0
    assert funds.lacks(1.0, funds.left + 1) == pytest.approx(1 / GIVEN)  # a prompt that takes more
    funds.spend(1e9)  # what stalled it once is no lock-out
    assert funds.lacks(1.0) == pytest.approx(LOAN / GIVEN)


@pytest.mark.parametrize("kind", ["easy", "mixed", "hard"])
def test_a_dear_draft_leaves_to_look_ups_what_they_won(kind: str) -> None:
    """Four texts, and a draft that is right where look-ups are: a fifth went to it, and more."""
    length, took = 300, list[float]()
    truths = texts(4, length)
    given, traces = dict(enumerate(truths)), {n: Trace.made(kind, length + 1, n) for n in range(4)}
    for both in (False, True):
        clock = Clock()
        sources = [Guesser(traces, given, clock, price=0.005)]
        sources += [Guesser(traces, given, clock, price=0.1, call=0.5)] if both else []
        run = Machine(FLAT, clock).run(Auto(*sources, clock=clock), truths, table=known(FLAT))
        took.append(run.total)
    assert took[1] <= 1.05 * took[0]


@pytest.mark.parametrize(("kind", "least"), [("easy", 0.95), ("hopeless", 0.985)])
def test_long_drafts_pay_for_a_dear_call(kind: str, least: float) -> None:
    """With one number for both, a level seems to take what a call and a level do."""
    length, clock = 1200, Clock()
    source = guesser(kind, length, clock)
    (truth,) = texts(1, length)
    run = Machine(FLAT, clock).run(Auto(source, clock=clock), [truth], table=known(FLAT))
    trace = source.traces[0]
    best = min(fixed(trace, FLAT, LEVEL, longest, False, CALL) for longest in (2, 4, 6, 8, 12))
    assert min(best, length) / run.total >= least
