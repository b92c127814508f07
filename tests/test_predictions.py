"""Predicted beside measured: acceptance from counts and where it leans, the cost of a pass."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis import (
    acceptance,
    break_even,
    expected_tokens,
    explain,
    from_records,
    pass_seconds,
    predict,
    speedup,
)
from draftproof.counts import Stats


@dataclass
class Counted:
    """Counts as a request keeps them."""

    drafting_steps: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    offered_per_position: list[int] = field(default_factory=list)


# --- measured acceptance ---


def test_acceptance_pools_counts_and_not_rates():
    long = Counted(10, 12, [8, 4], [10, 8])
    short = Counted(2, 1, [1], [2])
    pooled = acceptance([long, short])
    assert pooled.conditional == (9 / 12, 4 / 8)
    assert pooled.cumulative == (9 / 12, 4 / 12)
    assert pooled.alpha == 13 / 20
    assert pooled.length == 1 + 13 / 12
    assert pooled.length == pytest.approx(1 + sum(pooled.cumulative))  # vLLM's identity


def test_acceptance_of_the_counts_that_a_request_keeps():
    stats = Stats(steps=4, drafting_steps=3, drafted=9, accepted=2, tokens=6)
    stats.accepted_per_position, stats.offered_per_position = [2], [3, 2]
    one = acceptance([stats])
    assert one.conditional == (2 / 3, 0.0) and one.cumulative == (2 / 3, 0.0)
    assert one.alpha == 2 / 5 and one.length == stats.acceptance_length


def test_acceptance_of_nothing():
    for nothing in ([], [Counted()]):
        none = acceptance(nothing)
        assert (none.conditional, none.cumulative, none.alpha, none.length) == ((), (), 0, 1)


@given(st.integers(1, 6), st.floats(0.05, 0.95))
def test_alpha_is_the_likeliest(length, alpha):
    """The expected counts of an i.i.d. run give alpha back, at every length."""
    steps = 10**9
    offered = [round(steps * alpha**d) for d in range(length)]
    accepted = [round(steps * alpha ** (d + 1)) for d in range(length)]
    pooled = acceptance([Counted(steps, sum(accepted), accepted, offered)])
    assert pooled.alpha == pytest.approx(alpha, rel=1e-6)
    assert pooled.length == pytest.approx(expected_tokens(alpha, length), rel=1e-6)


# --- acceptances that hang together: why a mean alpha does not give the tokens per step ---

EASY, HARD = Fraction(9, 10), Fraction(1, 10)


def walk(length: int, stay: Fraction) -> tuple[list[Fraction], list[Fraction]]:
    """Exact chances (offered at depth d), (accepted at depth d) of a two-state Markov chain.

    A position is easy or hard, accepted with probability EASY or HARD, and the next one is of the
    same kind with probability `stay`. Runs start at either with probability 1/2, the law that the
    chain keeps.
    """
    offered, accepted = [], []
    state = {EASY: Fraction(1, 2), HARD: Fraction(1, 2)}  # chance to be there, all accepted so far
    for _ in range(length):
        offered.append(sum(state.values()))
        passed = {kind: chance * kind for kind, chance in state.items()}
        accepted.append(sum(passed.values()))
        state = {kind: stay * passed[kind] for kind in passed}
        state[EASY] += (1 - stay) * passed[HARD]
        state[HARD] += (1 - stay) * passed[EASY]
    return offered, accepted


@pytest.mark.parametrize("length", [2, 4, 8])
def test_correlated_acceptances_are_not_described_by_their_mean(length):
    offered, accepted = walk(length, stay=Fraction(9, 10))
    truth = float(1 + sum(accepted))
    mean = float((EASY + HARD) / 2)  # over positions of the text: Leviathan's alpha
    pooled = float(sum(accepted) / sum(offered))  # over positions that the walk reached: ours
    assert expected_tokens(mean, length) < truth * 0.95  # as in 4 of the 12 rows of Table 2
    assert expected_tokens(pooled, length) > truth * 1.01
    conditional = [a / o for a, o in zip(accepted, offered, strict=True)]
    assert conditional == sorted(conditional)  # whoever came far stands on easy ground


@pytest.mark.parametrize("length", [2, 4, 8])
def test_independent_acceptances_are(length):
    offered, accepted = walk(length, stay=Fraction(1, 2))
    assert sum(accepted) / sum(offered) == Fraction(1, 2) == (EASY + HARD) / 2
    assert float(1 + sum(accepted)) == expected_tokens(0.5, length)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.booleans())
def test_the_pooled_alpha_errs_to_the_side_that_acceptance_leans(rates, grows):
    """Growing along the run: promises more than the truth. Falling: less."""
    rates = sorted(rates, reverse=not grows)  # given that the walk came so far
    reached = list(itertools.accumulate([1.0, *rates], lambda a, b: a * b))
    truth, alpha = math.fsum(reached), math.fsum(reached[1:]) / math.fsum(reached[:-1])
    promised = expected_tokens(min(alpha, 1.0), len(rates))
    assert promised >= truth * (1 - 1e-9) if grows else promised <= truth * (1 + 1e-9)


# --- the cost of a pass ---


def test_passes_are_interpolated_and_go_on_along_the_last_slope():
    cost = {8: 3.0, 1: 1.0, 4: 2.0}  # in any order
    assert [pass_seconds(cost, n) for n in (1, 4, 8)] == [1.0, 2.0, 3.0]
    assert pass_seconds(cost, 2) == pytest.approx(4 / 3)
    assert pass_seconds(cost, 6) == 2.5
    assert pass_seconds(cost, 12) == 4.0
    assert pass_seconds({1: 0.5}, 9) == 0.5  # nothing else is known
    assert pass_seconds({1: 1.0, 4: 2.0, 8: 1.9}, 100) == 1.9  # noise does not go on falling


@given(
    st.dictionaries(st.integers(2, 40), st.floats(0.1, 10), max_size=5),
    st.floats(0.1, 10),
    st.integers(1, 60),
)
def test_a_pass_lies_between_its_neighbours(cost, first, tokens):
    cost = {1: first, **cost}
    seconds = pass_seconds(cost, tokens)
    below = [n for n in cost if n <= tokens]
    above = [n for n in cost if n >= tokens]
    ends = [cost[max(below)]] + ([cost[min(above)]] if above else [])
    if above:
        assert min(ends) - 1e-9 <= seconds <= max(ends) + 1e-9
    else:
        assert seconds >= ends[0]


# --- predicted beside measured ---


def test_a_prediction_without_a_cost_curve_is_leviathans():
    made = predict(0.8, 5, 0.1)
    assert made.tokens_per_step == expected_tokens(0.8, 5)
    assert made.free == made.speedup == pytest.approx(speedup(0.8, 5, 0.1), rel=1e-12)
    assert (made.nodes, made.pass_cost, made.draft_cost) == (6, 1.0, 0.5)


def test_a_prediction_pays_for_verification():
    cost = {1: 2.0, 6: 3.0, 12: 4.0}
    chain, tree = predict(0.8, 5, 0.1, cost), predict(0.8, 5, 0.1, cost, nodes=12)
    assert chain.pass_cost == 1.5 and tree.pass_cost == 2.0
    assert chain.speedup == pytest.approx(expected_tokens(0.8, 5) / (1.5 + 0.5))
    assert tree.speedup == pytest.approx(expected_tokens(0.8, 5) / (2.0 + 0.5))
    assert chain.free == tree.free == speedup(0.8, 5, 0.1)
    assert predict(0.3, 0, 0.1, cost).speedup == 1.0


def test_an_explanation_adds_up_and_gives_the_reasons():
    prediction = predict(0.8, 4, 0.05, {1: 1.0, 5: 1.2})
    assert explain(prediction, 3.00, 2.0) == (
        "A step wrote 3.00 tokens where 3.36 were expected, because acceptances inside a run are "
        "correlated, of which one mean alpha (0.80) says nothing, or because not every step "
        "drafted 4 tokens. It took 1.50 plain steps: 1 for a pass over one token, +0.20 because it "
        "verifies 5, +0.20 for drafting, and +0.10 of the engine's own time."
    )
    more = explain(prediction, 3.8, 3.8 / 1.3)
    assert "correlated" in more and "not every step drafted" not in more
    assert "-0.10 where less was drafted than assumed" in more
    assert "because acceptances" not in explain(prediction, prediction.tokens_per_step, 2.0)


# --- predictions from records ---


def test_records_give_the_tokens_that_were_written():
    """Whatever hangs together: the mean alpha is 12% off where acceptance is as in `walk`."""
    offered, accepted = walk(6, Fraction(9, 10))
    n = 10**6
    counts = Counted(
        n,
        round(n * sum(accepted)),
        [round(n * a) for a in accepted],
        [round(n * o) for o in offered],
    )
    truth = float(1 + sum(accepted))
    made = from_records(acceptance([counts]), 1.0, 7, 0.2, {1: 1.0, 7: 1.0})
    assert made.tokens_per_step == pytest.approx(truth, rel=1e-5)
    assert made.speedup == pytest.approx(truth / 1.2, rel=1e-5)
    assert abs(expected_tokens(made.alpha, 6) / truth - 1) > 0.01


def test_records_of_a_batch_and_of_an_engine():
    counts = acceptance([Counted(10, 15, [10, 5], [10, 10])])
    cost = {1: 1.0, 2: 1.0, 4: 2.0, 6: 3.0}
    made = from_records(counts, 0.5, 3, 0.5, cost, batch=2, own=1.0)
    assert made.tokens_per_step == 1 + 0.5 * 1.5
    # Two texts, half of whose steps draft two tokens: 4 rows. A plain step takes 1 + 1.
    assert made.speedup == pytest.approx(1.75 / ((2 + 1 + 0.5) / 2))
    told = from_records(counts, 0.5, 3, 0.5, cost, batch=2, own=1.0, once=0.25)
    # A token of a text takes a quarter of a second besides, on either side.
    assert told.speedup == pytest.approx((2 + 0.25) / (0.25 + 3.5 / 1.75))
    said = explain(told, 1.75, told.speedup)
    assert "It took 1.75 plain steps" in said and "+0.00 of the engine" in said
    for wrong in ({"drafting": 1.1}, {"nodes": 0.5}, {"batch": 0}, {"own": -1.0}, {"once": -1.0}):
        given = {"drafting": 0.5, "nodes": 3, "draft_seconds": 0.5, "cost": cost, **wrong}
        with pytest.raises(ValueError):
            from_records(counts, **given)


def test_where_a_draft_breaks_even():
    flat = dict.fromkeys(range(1, 10), 1.0)
    assert break_even(0.2, flat) == pytest.approx(0.2, abs=1e-6)  # Corollary 3.9
    steep = {n: float(n) for n in range(1, 10)}
    assert break_even(0.0, steep) is None and break_even(1.5, flat) is None
    cost = {1: 1.0, 2: 1.1, 4: 1.4, 9: 2.5}
    # What a draft takes whatever its length: one token has to bring all of it, eight an eighth.
    assert break_even(0.0, flat, longest=1, call=0.4) == pytest.approx(0.4, abs=1e-6)
    shared = break_even(0.0, flat, call=0.4)
    assert shared is not None and shared < 0.3 < 0.4
    assert break_even(0.1, flat, longest=3, call=2.7) is None
    needed = break_even(0.1, cost)
    assert needed is not None and 0.1 < needed < 1
    for gain in (1.0, 1.25):
        needed = break_even(0.1, cost, gain=gain)
        assert needed is not None
        for alpha, pays in ((needed + 1e-3, True), (needed - 1e-3, False)):
            speeds = [predict(alpha, length, 0.1, cost).speedup for length in range(1, 9)]
            assert (max(speeds) > gain) is pays
