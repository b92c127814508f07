"""The formulae against the paper's tables and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis import (
    acceptance,
    best_length,
    expected_tokens,
    explain,
    pass_seconds,
    predict,
    speedup,
)

alphas = st.floats(0, 1)
lengths = st.integers(0, 12)
ratios = st.floats(0, 2)


@pytest.mark.parametrize(
    ("alpha", "length", "speed"),
    [
        (0.6, 2, "1.96"),
        (0.7, 3, "2.53"),
        (0.8, 2, "2.44"),
        (0.8, 5, "3.69"),
        (0.9, 2, "2.71"),
        (0.9, 10, "6.86"),
    ],
)
def test_table_1_of_leviathan(alpha, length, speed):
    assert f"{speedup(alpha, length, 0):.2f}" == speed


@given(alphas, st.integers(0, 6))
def test_expected_tokens_are_those_of_all_runs_of_coins(alpha, length):
    total = 0.0
    for coins in itertools.product((True, False), repeat=length):
        chance = math.prod(alpha if coin else 1 - alpha for coin in coins)
        accepted = coins.index(False) if False in coins else length
        total += chance * (accepted + 1)
    assert expected_tokens(alpha, length) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("length", [0, 1, 7, 64])
def test_limits_are_exact(length):
    assert expected_tokens(0, length) == 1
    assert expected_tokens(1, length) == length + 1
    assert speedup(0, length, 0.5) == 1 / (1 + length / 2)
    assert speedup(1, length, 0) == length + 1
    assert expected_tokens(1 - 1e-16, length) == pytest.approx(length + 1)  # the quotient loses it


@given(alphas, alphas, lengths)
def test_more_acceptance_or_length_never_yields_less(a, b, length):
    low, high = sorted((a, b))
    slack = 1 + 1e-12
    assert expected_tokens(low, length) <= expected_tokens(high, length) * slack
    assert expected_tokens(low, length) <= expected_tokens(low, length + 1)


@given(alphas, ratios, st.integers(0, 20))
def test_best_length_is_the_best_of_all(alpha, c, longest):
    values = [speedup(alpha, length, c) for length in range(longest + 1)]
    assert best_length(alpha, c, longest) == values.index(max(values))


@given(alphas, ratios)
def test_something_pays_exactly_where_alpha_exceeds_c(alpha, c):
    """Corollary 3.9: at least (1 + alpha) / (1 + c)."""
    if alpha > c + 1e-9:
        best = best_length(alpha, c)
        assert best >= 1 and speedup(alpha, best, c) >= (1 + alpha) / (1 + c) * (1 - 1e-12)
    elif alpha < c:
        assert best_length(alpha, c) == 0


def test_nothing_pays_at_a_tie():
    assert best_length(0.5, 0.5) == best_length(0, 0) == 0
    assert best_length(1, 0.9, 7) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: expected_tokens(1.1, 2),
        lambda: expected_tokens(-0.1, 2),
        lambda: expected_tokens(math.nan, 2),
        lambda: expected_tokens(0.5, -1),
        lambda: speedup(0.5, 2, -0.1),
        lambda: speedup(0.5, 2, math.inf),
        lambda: speedup(0.5, 2, math.nan),
        lambda: best_length(0.5, -1),
        lambda: best_length(0.5, 0.1, -1),
        lambda: pass_seconds({2: 1.0}, 2),
        lambda: pass_seconds({0: 1.0, 1: 1.0}, 2),
        lambda: pass_seconds({1: 0.0}, 2),
        lambda: pass_seconds({1: math.nan}, 2),
        lambda: pass_seconds({}, 1),
        lambda: pass_seconds({1: 1.0}, 0),
        lambda: predict(0.5, 3, 0.1, nodes=3),
        lambda: predict(0.5, 3, -0.1),
        lambda: predict(acceptance([]), 3, 0.1),
        lambda: explain(predict(0.5, 3, 0.1), 0.0, 1.0),
        lambda: explain(predict(0.5, 3, 0.1), 2.0, math.nan),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(wrong):
    with pytest.raises(ValueError, match=r"^[^.\n]+ (is|must) .*[^.]$") as refusal:
        wrong()
    assert "\n" not in str(refusal.value) and ". " not in str(refusal.value)
