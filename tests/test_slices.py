"""Slices of prompts beside writers: as large as the writers' wait permits, drafts counted."""

from __future__ import annotations

import random

import pytest

from draftproof.drafting.allotting import allot
from draftproof.drafting.offers import Offer
from draftproof.drafting.price import Price
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import ROWS, attended
from draftproof.runners.slices import LEAST
from draftproof.tree import TokenTree

ONE = 0.02
WRITERS, LIMIT = 4, 4.0  # passes of the writers


def true(rows: int, reading: float, dearer: float = 1.0) -> float:
    """Seconds on a machine where 16 rows compute as long as the weights are read."""
    return ONE * dearer * (max(1.0, rows / 16) + 6e-5 * reading)


@pytest.fixture
def costs() -> PassCosts:
    found = PassCosts(9.0)
    for _ in range(32):
        for rows in ROWS:
            found.observe(rows, 100, true(rows, 100))
    return found


def read(costs: PassCosts, drafted: int, *, dearer: float = 1.0, steps: int = 40) -> list[float]:
    """Passes with a slice, in the seconds of the writers' own; each drafts what it may, and
    a plain pass follows."""
    took, behind, rng = [], 0, random.Random(3)
    for _ in range(steps):
        tokens = costs.slices.tokens(WRITERS, 1, behind, 512)
        rows, reading = WRITERS + tokens, attended(tokens, behind)
        costs.plan(rows, reading, WRITERS)
        assert costs.slices.room is not None
        rows += min(drafted, costs.slices.room)
        seconds = true(rows, reading, dearer) * rng.uniform(0.95, 1.05)
        costs.observe(rows, reading, seconds)
        took.append(seconds / true(WRITERS, 0))
        behind += tokens
        costs.plan(WRITERS, 0, WRITERS)
        costs.observe(WRITERS, 400, true(WRITERS, 400))
    return took


def test_a_slice_is_the_largest_whose_pass_keeps_writers_waiting_no_longer(
    costs: PassCosts,
) -> None:
    slices = costs.slices
    found = slices.tokens(4, 1, 0, 512)
    limit = 4 * costs.seconds(4)
    assert costs.seconds(4 + found, attended(found, 0)) <= limit * 1.001
    assert costs.seconds(4 + found + 1, attended(found + 1, 0)) > limit
    assert slices.tokens(4, 1, 100_000, 512) < found  # what is read already is attended to
    assert slices.tokens(4, 1, 0, 512, seconds=2 * costs.seconds(4)) < found
    assert slices.tokens(4, 1, 0, 512, seconds=costs.one / 10) == LEAST  # else it would never end
    assert slices.tokens(4, 1, 0, 5) == 5


def test_few_writers_wait_longer_where_many_texts_wait_to_be_read(costs: PassCosts) -> None:
    few, many = (costs.slices.tokens(1, readers, 0, 512) for readers in (1, 32))
    assert costs.slices.tokens(1, 4, 0, 512) >= few
    assert costs.seconds(1 + many, attended(many, 0)) <= 4 * costs.seconds(32) * 1.001
    assert many > 1.5 * few
    assert costs.slices.tokens(32, 1, 0, 512) >= many - 32  # the same limit, with more writers


@pytest.mark.parametrize("drafted", [0, 3, 16, 80])
def test_drafts_take_their_part_of_the_wait(costs: PassCosts, drafted: int) -> None:
    took = read(costs, drafted)
    assert max(took) < LIMIT * 1.2, took
    assert min(took[4:]) > LIMIT / 2, took  # and nothing is left lying


def test_passes_that_turn_out_dearer_get_smaller_slices(costs: PassCosts) -> None:
    read(costs, 0)
    usual = costs.slices.tokens(WRITERS, 1, 0, 512)
    took = read(costs, 0, dearer=1.6)
    assert costs.slices.tokens(WRITERS, 1, 0, 512) < 0.8 * usual
    assert max(took[20:]) < LIMIT * 1.1 < max(took[:3])


def test_where_the_slice_cannot_give_way_nothing_is_drafted(costs: PassCosts) -> None:
    assert costs.slices.tokens(WRITERS, 1, 500_000, 512) == LEAST
    costs.plan(WRITERS + LEAST, 500_000 * LEAST, WRITERS)
    assert costs.slices.room == 0


def test_only_a_pass_with_a_slice_has_a_limit(costs: PassCosts) -> None:
    costs.plan(WRITERS, 0, WRITERS)
    assert costs.slices.room is None
    costs.slices.tokens(WRITERS, 1, 0, 512)
    costs.plan(60, 1000, WRITERS)
    assert costs.slices.room == WRITERS
    costs.plan(WRITERS, 0, WRITERS)  # the pass before was never made
    assert costs.slices.room is None


def test_no_more_nodes_than_there_is_room_for() -> None:
    offer = Offer(7, depth=20, limit=20)
    offer.add(0, TokenTree.chain([*range(9)]), [1.0, *[0.99] * 8])
    kept, _ = allot([offer], [0], [9.0], [9.0], Price(1.0, 1, [0, 1, *[1.01] * 20], room=3), 9.0)
    assert kept == [[0, 1, 2, 3]]
