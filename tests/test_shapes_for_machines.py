"""The shape for a machine: the tree or chain that takes least time, and Medusa's calibration."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from all_trees import Nested, depth_of, rates, trees, value
from draftproof.analysis import best_length, expected_tokens, pass_seconds
from draftproof.shapes import (
    Best,
    best_shape,
    calibrated,
    choices_to_parents,
    expected,
    parents_to_choices,
)


def height(tree: Nested) -> int:
    return max((1 + height(child) for child in tree), default=0)


def connected(heads: int, ranks: int, nodes: int) -> Iterator[frozenset[tuple[int, ...]]]:
    """All sets of nodes - 1 paths that hold the parents of their paths."""
    grown = {frozenset({()})}
    for _ in range(nodes - 1):
        grown = {
            tree | {(*path, rank)}
            for tree in grown
            for path in tree
            if len(path) < heads
            for rank in range(ranks)
            if (*path, rank) not in tree
        }
    return (tree - {()} for tree in grown)


# --- the shape for a machine ---


@pytest.mark.parametrize("draft_cost", [0.0, 0.05, 0.4, 3.0])
@pytest.mark.parametrize(
    "cost", [{1: 1.0}, {1: 1.0, 8: 1.5}, {1: 1.0, 4: 1.0, 5: 2.0, 8: 2.0}, {1: 1.0, 8: 8.0}]
)
def test_no_tree_takes_less_time(cost, draft_cost):
    p, most, deepest = [0.6, 0.25, 0.1], 7, 4
    times = {}  # (time, nodes, depth) in the order of preference
    for n in range(1, most + 1):
        for tree in trees(n, deepest):
            seconds = height(tree) * draft_cost + pass_seconds(cost, n)
            times[seconds / value(tree, p), n, height(tree)] = tree
    best = best_shape(p, cost, draft_cost, most, deepest)
    assert best.seconds_per_token == pytest.approx(min(times)[0], rel=1e-12)
    assert best.tokens_per_step == pytest.approx(expected(best.parents, p), rel=1e-12)
    assert depth_of(best.parents) == best.depth <= deepest
    spent = best.depth * draft_cost + pass_seconds(cost, len(best.parents))
    assert best.seconds_per_token == pytest.approx(spent / best.tokens_per_step, rel=1e-12)


def test_what_does_not_pay_is_not_drafted():
    alone = Best([-1], 0, 1.0, 2.0)
    assert best_shape([0.5, 0.2], {1: 2.0, 2: 4.0}, 0.0, 16, 4) == alone
    assert best_shape([0.5], {1: 2.0}, 1.0, 16, 4) == alone  # a tie goes to the smaller tree
    assert best_shape([0.0, 0.0], {1: 2.0}, 0.0, 16, 4) == alone
    assert best_shape([], {1: 2.0}, 0.0, 16, 4) == alone
    assert best_shape([0.9], {1: 2.0}, 0.0, 16, 0) == alone


def test_where_passes_are_free_the_largest_tree_is_best():
    best = best_shape([0.5, 0.25], {1: 1.0}, 0.0, 100, 2)
    assert len(best.parents) == 7 and best.depth == 2  # all that there is
    assert best.tokens_per_step == 1 + 0.75 + 0.75**2


@given(rates, st.floats(0, 2), st.integers(0, 12))
def test_one_rate_and_a_flat_cost_are_leviathans(alpha, c, longest):
    length = best_length(alpha, c, longest)
    least = (length * c + 1) / expected_tokens(alpha, length)
    best = best_shape([alpha], {1: 1.0}, c, longest + 1, longest)
    assert best.seconds_per_token == pytest.approx(least, rel=1e-12)


# --- Medusa's calibration ---


@pytest.mark.parametrize("nodes", range(1, 6))
@given(st.lists(st.lists(rates, min_size=2, max_size=2), min_size=3, max_size=3))
def test_no_connected_tree_is_better(nodes, accuracies):
    choices, tokens = calibrated(accuracies, nodes)

    def score(tree):
        return 1 + math.fsum(math.prod(accuracies[k][i] for k, i in enumerate(p)) for p in tree)

    assert tokens == pytest.approx(score(choices), rel=1e-12)
    assert tokens == pytest.approx(max(map(score, connected(3, 2, nodes))), rel=1e-12)


def test_calibration_by_hand():
    accuracies = [[0.5, 0.2], [0.4, 0.3]]
    assert calibrated(accuracies, 1) == ([], 1.0)
    choices, tokens = calibrated(accuracies, 5)
    assert choices == [(0,), (1,), (0, 0), (0, 1)]  # by length, then rank by rank
    assert tokens == pytest.approx(1 + 0.5 + 0.2 + 0.2 + 0.15)
    assert calibrated(accuracies, 7)[0] == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert calibrated([[0.1, 0.3]], 2)[0] == [(1,)]  # the second guess was the better one


def test_calibration_of_five_heads():
    """A tree of the published size: 63 choices, 64 nodes."""
    accuracies = [[0.6 * 0.8**k / (i + 1) ** 1.5 for i in range(10)] for k in range(5)]
    choices, tokens = calibrated(accuracies, 64)
    assert len(choices) == 63 and 1 < tokens < 6
    assert choices == sorted(choices, key=lambda path: (len(path), path))
    parents = choices_to_parents(choices)
    assert len(parents) == 64 and parents_to_choices(parents) == choices
    products = [math.prod(accuracies[k][i] for k, i in enumerate(path)) for path in choices]
    every = itertools.chain(*(itertools.product(range(10), repeat=k) for k in range(1, 6)))
    gains = (math.prod(accuracies[k][i] for k, i in enumerate(path)) for path in every)
    best = heapq.nlargest(63, gains)  # of all paths: the likeliest hang together
    assert sum(products) == pytest.approx(sum(best), rel=1e-12)
