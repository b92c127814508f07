"""The shapes of trees against all trees there are, and the recurrences as the papers write them."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from all_trees import Nested, depth_of, rates, trees, value
from draftproof.analysis import expected_tokens
from draftproof.shapes import (
    best_shape,
    calibrated,
    choices_to_parents,
    expected,
    parents_to_choices,
    positional,
    sequoia,
)

vectors = st.lists(rates, min_size=1, max_size=3)
RELEASED = [0.6342, 0.1079]  # the first two rates of Sequoia's released example
CHAIN = [-1, 0, 1, 2]


def parents_of(tree: Nested) -> list[int]:
    """Depth first, which is not the order that shapes are made in."""
    parents: list[int] = []

    def visit(node: Nested, parent: int) -> None:
        here = len(parents)
        parents.append(parent)
        for child in node:
            visit(child, here)

    visit(tree, -1)
    return parents


def written_as_in_the_paper(p: list[float], nodes: int) -> float:
    """T[1, 0] = 1; T[n, b] = max over m of T[n - m, b - 1] + P[b] max_j T[m, j]."""

    @functools.cache
    def t(n: int, b: int) -> float:
        if b == 0:
            return 1.0 if n == 1 else -math.inf
        return max(
            (t(n - m, b - 1) + p[b - 1] * best(m) for m in range(1, n) if best(m) > 0),
            default=-math.inf,
        )

    @functools.cache
    def best(n: int) -> float:
        return max(t(n, b) for b in range(len(p) + 1))

    return best(nodes)


def written_with_depth(p: list[float], nodes: int, depth: int) -> float:
    """The same with T[n, d, b], the last subtree at d - 1; the root alone is d = 1 here."""

    @functools.cache
    def t(n: int, d: int, b: int) -> float:
        if d < 1:
            return -math.inf
        if b == 0:
            return 1.0 if n == 1 else -math.inf
        return max(
            (t(n - m, d, b - 1) + p[b - 1] * below(m, d) for m in range(1, n) if below(m, d) > 0),
            default=-math.inf,
        )

    @functools.cache
    def below(m: int, d: int) -> float:
        return max(t(m, d - 1, b) for b in range(len(p) + 1))

    return below(nodes, depth + 2)


# --- the value of a shape ---


@pytest.mark.parametrize("nodes", range(1, 8))
def test_expected_is_that_of_the_walk(nodes):
    p = [0.5, 0.3, 0.1]
    for tree in trees(nodes, depth=7):
        assert expected(parents_of(tree), p) == pytest.approx(value(tree, p), rel=1e-12)


def test_expected_of_a_chain_is_leviathans():
    for length in range(6):
        chain = list(range(-1, length))
        assert expected(chain, [0.7]) == pytest.approx(expected_tokens(0.7, length), rel=1e-12)


def test_expected_at_its_limits():
    assert expected([-1], []) == 1
    assert expected([-1, 0, 0, 1], [0.0, 0.0]) == 1
    assert expected([-1, 0, 0, 0], [0.5, 0.25, 0.125]) == 1.875
    assert expected([-1, 0, 0, 2], [0.5, 0.25]) == 1 + 0.5 + 0.25 + 0.25 * 0.5


def test_the_printed_example_of_sequoia():
    """Its shape, its tokens, and its time, which charges one depth of drafting more than ours.

    p_1 is printed to four digits, so that the printed tokens (2.29143) are known to lie between.
    """
    least, most = (sequoia([p, 0.1079], 4, 9)[1] for p in (0.63415, 0.63425))
    assert least < 2.29143 < most and most - least < 4e-4
    parents, tokens = sequoia(RELEASED, 4, 9)
    assert parents == CHAIN
    assert tokens == pytest.approx(1 + 0.6342 + 0.6342**2 + 0.6342**3, rel=1e-12)
    cost = {1: 10.0, 2: 10.0, 4: 10.0, 8: 12.0, 16: 14.0, 32: 18.0}
    best = best_shape(RELEASED, cost, 0.3, nodes=4, depth=9)
    assert (best.parents, best.depth) == (CHAIN, 3)
    assert best.seconds_per_token == pytest.approx((3 * 0.3 + 10) / tokens, rel=1e-12)
    released = best.seconds_per_token + 0.3 / tokens
    assert released == pytest.approx(4.88777, rel=1e-4)
    assert 10 / released == pytest.approx(2.046, rel=1e-3)


# --- the dynamic programme ---


def test_the_enumeration_is_complete():
    """Catalan numbers, where three children a node are no bound."""
    assert [len(trees(n, depth=9)) for n in range(1, 5)] == [1, 1, 2, 5]
    assert len(trees(5, depth=9)) == 14 - 1  # without the star of four
    assert len(set(trees(8, depth=9))) == len(trees(8, depth=9)) > 200


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("p", [[0.6, 0.2, 0.1], [0.2, 0.1, 0.6], [0.3, 0.3, 0.3], [1.0, 0.0, 0.0]])
def test_no_tree_is_better(nodes, p):
    for depth in (*range(8), None):
        of_all = trees(nodes, nodes if depth is None else depth)
        if not of_all:
            with pytest.raises(ValueError, match="no tree of depth"):
                sequoia(p, nodes, depth)
            continue
        parents, tokens = sequoia(p, nodes, depth)
        assert tokens == pytest.approx(max(value(tree, p) for tree in of_all), rel=1e-12)
        assert expected(parents, p) == pytest.approx(tokens, rel=1e-12)


@given(vectors, st.integers(1, 14), st.integers(0, 5))
def test_the_programme_is_the_recurrence(p, nodes, depth):
    if nodes == 1 or p:
        tokens = sequoia(p, nodes)[1]
        assert tokens == pytest.approx(written_as_in_the_paper(p, nodes), rel=1e-12)
    slow = written_with_depth(p, nodes, depth)
    if slow == -math.inf:
        with pytest.raises(ValueError, match="no tree of depth"):
            sequoia(p, nodes, depth)
    else:
        assert sequoia(p, nodes, depth)[1] == pytest.approx(slow, rel=1e-12)


@given(st.lists(rates, min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 12))
def test_a_shape_is_what_was_asked_for(p, nodes, depth):
    most = sum(len(p) ** d for d in range(depth + 1))
    parents, tokens = sequoia(p, min(nodes, most), depth)
    assert len(parents) == min(nodes, most)
    assert depth_of(parents) <= depth
    assert tokens == pytest.approx(expected(parents, p), rel=1e-12)
    assert parents == choices_to_parents(parents_to_choices(parents))  # level by level
    if most <= 60:
        with pytest.raises(ValueError, match="is so large"):
            sequoia(p, most + 1, depth)


@given(st.lists(rates, min_size=1, max_size=4), st.integers(1, 24), st.integers(1, 6))
def test_more_nodes_or_depth_never_yield_less(p, nodes, depth):
    slack = 1 + 1e-12
    free = sequoia(p, nodes)[1]
    assert free <= sequoia(p, nodes + 1)[1] * slack
    assert sequoia(p, nodes, nodes - 1)[1] == free  # no node lies deeper
    if nodes <= sum(len(p) ** d for d in range(depth + 1)):
        bounded = sequoia(p, nodes, depth)[1]
        assert bounded <= free * slack
        assert bounded <= sequoia(p, nodes, depth + 1)[1]


@given(st.lists(rates, min_size=1, max_size=5), st.integers(1, 60), st.integers(1, 6))
def test_falling_rates_make_the_greedy_tree_optimal(p, nodes, depth):
    """Then an earlier sibling is never worth less: Medusa's greedy choice with equal heads."""
    p = sorted(p, reverse=True)
    nodes = min(nodes, sum(len(p) ** d for d in range(depth + 1)))
    greedy = calibrated([p] * depth, nodes)[1]
    assert sequoia(p, nodes, depth)[1] == pytest.approx(greedy, rel=1e-12)


def test_the_largest_trees():
    p = [0.63 / (k + 1) ** 2 for k in range(33)]
    for depth in (10, None):
        parents, tokens = sequoia(p, 128, depth)
        assert len(parents) == 128 and tokens == pytest.approx(expected(parents, p), rel=1e-12)


# --- paths and parents ---


@pytest.mark.parametrize("nodes", range(1, 8))
def test_choices_and_parents_are_one_thing(nodes):
    for tree in trees(nodes, depth=7):
        parents = parents_of(tree)
        paths = parents_to_choices(parents)
        level_by_level = choices_to_parents(reversed(paths))  # in any order
        assert parents_to_choices(level_by_level) == sorted(paths, key=lambda p: (len(p), p))
        assert choices_to_parents(parents_to_choices(level_by_level)) == level_by_level


def test_paths_by_hand():
    assert parents_to_choices([-1]) == [] and choices_to_parents([]) == [-1]
    assert parents_to_choices([-1, 0, 1, 0, 1]) == [(0,), (0, 0), (1,), (0, 1)]
    assert choices_to_parents([[0], [0, 0], [1], [0, 1]]) == [-1, 0, 0, 1, 1]
    assert choices_to_parents([[4], [4, 2]]) == [-1, 0, 1]  # gaps do not show


# --- rates from counts ---


def test_rates_are_pooled_by_rank():
    assert positional([60, 12, 0], [100, 80, 20]) == [0.6, 0.15, 0.0]
    assert positional([], []) == [] and positional([0], [0]) == [0.0]


# --- refusals ---


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: expected([], [0.5]),
        lambda: expected([0], [0.5]),
        lambda: expected([-1, 1], [0.5]),
        lambda: expected([-1, -1], [0.5]),
        lambda: expected([-1, 0, 0], [0.5]),
        lambda: expected([-1, 0], [1.5]),
        lambda: sequoia([0.5], 0),
        lambda: sequoia([0.5], -3),
        lambda: sequoia([0.5], 2, -1),
        lambda: sequoia([0.5], 3, 1),
        lambda: sequoia([], 2),
        lambda: sequoia([0.5, -0.1], 2),
        lambda: sequoia([math.nan], 2),
        lambda: best_shape([2], {1: 1.0}, 0.1, 4, 2),
        lambda: best_shape([0.5], {2: 1.0}, 0.1, 4, 2),
        lambda: best_shape([0.5], {1: 1.0}, -0.1, 4, 2),
        lambda: best_shape([0.5], {1: 1.0}, math.inf, 4, 2),
        lambda: best_shape([0.5], {1: 1.0}, 0.1, 0, 2),
        lambda: best_shape([0.5], {1: 1.0}, 0.1, 4, -1),
        lambda: calibrated([[0.5], [0.5, 1.1]], 2),
        lambda: calibrated([[0.5]], 0),
        lambda: calibrated([[0.5], [0.5]], 4),
        lambda: calibrated([], 2),
        lambda: choices_to_parents([[0, 0]]),
        lambda: choices_to_parents([[0], [0]]),
        lambda: choices_to_parents([[]]),
        lambda: choices_to_parents([[0], [-1]]),
        lambda: parents_to_choices([-1, 0, 2]),
        lambda: positional([1], [1, 2]),
        lambda: positional([2], [1]),
        lambda: positional([-1], [1]),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(wrong):
    with pytest.raises(ValueError, match=r"^[^.\n]+ (is|must) .*[^.]$") as refusal:
        wrong()
    assert "\n" not in str(refusal.value) and ". " not in str(refusal.value)
