"""What a pass costs is learnt from passes: curve, level, and what a neighbour does to them."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftproof.drafts import Drafts
from draftproof.runners.costs import PassCosts, knee_of
from draftproof.runners.curves import KNEES, MOST, ROWS, attended, rising, shipped
from simulated import FLAT, ONE, SIZES, STAIRS, STEEP, cost, taught


@pytest.mark.parametrize("knee", KNEES.values())
def test_what_is_shipped_rises_from_one(knee: float) -> None:
    curve = shipped(knee)
    assert curve[0] == 1 and all(low < high for low, high in pairwise(curve))
    costs = PassCosts(knee)
    assert [costs.curve()[rows] for rows in ROWS if rows <= MOST] == pytest.approx(
        [each for rows, each in zip(ROWS, curve, strict=True) if rows <= MOST]
    )


@pytest.mark.parametrize("curve", [FLAT, STEEP, STAIRS], ids=["flat", "steep", "stairs"])
def test_any_curve_is_learnt_within_some_dozens_of_passes(curve) -> None:
    costs = PassCosts(9.0)
    taught(costs, curve, 128)
    for rows in SIZES:
        assert costs.curve()[rows] == pytest.approx(cost(curve, rows), rel=0.12)
    assert costs.one == pytest.approx(ONE, rel=0.12)
    assert costs.seconds(8) == pytest.approx(cost(curve, 8) * ONE, rel=0.12)


def test_what_slows_all_passes_alike_changes_no_ratio() -> None:
    costs = PassCosts(9.0)
    taught(costs, FLAT, 256)
    before = [costs.curve()[rows] for rows in SIZES]
    taught(costs, FLAT, 32, seed=1, slower=1.5)
    assert costs.one == pytest.approx(1.5 * ONE, rel=0.12)
    assert [costs.curve()[rows] for rows in SIZES] == pytest.approx(before, rel=0.06)


def test_what_slows_some_passes_more_is_learnt_within_64() -> None:
    """Twelve rows rose from 1.12 to 1.26 of one from one hour to another."""
    dearer = tuple((rows, each if rows < 8 else each * 1.125) for rows, each in FLAT)
    costs = PassCosts(9.0)
    taught(costs, FLAT, 256)
    taught(costs, dearer, 64, seed=1)
    assert costs.curve()[12] == pytest.approx(cost(dearer, 12), rel=0.05)


def test_one_pass_that_was_held_up_is_no_cost() -> None:
    costs = PassCosts(9.0)
    taught(costs, FLAT, 256)
    before = costs.curve()[4], costs.one
    for _ in range(16):
        costs.observe(4, 0, ONE * 50 if _ == 3 else ONE * 1.02)
    assert (costs.curve()[4], costs.one) == pytest.approx(before, rel=0.1)


def test_attention_is_told_from_rows() -> None:
    costs, rng = PassCosts(9.0), random.Random(0)
    for _ in range(400):
        rows, context = rng.choice(SIZES), rng.choice((16, 512, 2048))
        seconds = (cost(FLAT, rows) + 0.08 * rows * context / 1000) * ONE
        costs.observe(rows, rows * context, seconds * rng.lognormvariate(0, 0.03))
    assert costs.attention * 1000 == pytest.approx(0.08, rel=0.2)
    assert costs.seconds(8, 8 * 1000) == pytest.approx((1.05 + 0.64) * ONE, rel=0.12)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_clock_that_stands_still_or_jumps_teaches_nothing(seconds: float) -> None:
    costs = PassCosts(9.0)
    for _ in range(64):
        costs.observe(4, 0, seconds)
    assert costs.passes == 0 and costs.curve() == PassCosts(9.0).curve()


def test_more_rows_never_cost_less() -> None:
    costs = PassCosts(9.0)
    for _ in range(64):  # as if eight rows were faster than four
        costs.observe(4, 0, 2 * ONE)
        costs.observe(8, 0, ONE)
    assert all(low <= high for low, high in pairwise(costs.curve()))


def test_runners_start_with_what_they_compute_with() -> None:
    class Runner:
        name, precision = "native (avx512)", "bfloat16"

    made = Runner()
    assert knee_of(made) == KNEES["avx512"]
    made.name = "native (amx)"
    assert knee_of(made) == KNEES["amx"]
    made.name, made.precision = "native (avx512)", "int8"
    assert knee_of(made) == KNEES["int8"]
    made.name = "native (avx2)"
    assert knee_of(made) == KNEES["avx2 integers"] < KNEES["avx2"]
    made.precision = "Q4_1"
    assert knee_of(made) == KNEES["avx2 integers"]
    made.precision = "bfloat16"
    assert knee_of(made) == KNEES["avx2"]
    assert knee_of(object()) == KNEES["torch"]


def test_what_a_pass_was_expected_to_take_is_told_by_what_was_known_before_it() -> None:
    costs = PassCosts(9.0)
    drafts = Drafts(None, None, costs)
    turns: list[Any] = [SimpleNamespace(at=0, new=[1, 2, 3, 4])]
    drafts.passed(turns, [4], 0.25)
    assert drafts.foretold == 0.25  # nothing was known
    taught(costs, FLAT, 128)
    before = costs.seconds(4, attended(4, 0))
    for _ in range(16):
        known = costs.seconds(4, attended(4, 0))
        drafts.passed(turns, [4], 1.5 * before)
        assert drafts.foretold == known
    assert costs.seconds(4, attended(4, 0)) > 1.03 * before


def test_a_texts_keys_are_read_once_for_all_of_its_rows() -> None:
    """Eight rows of one text, eight of eight texts: tokens that are attended to."""
    together, apart = attended(8, 1000), 8 * attended(1, 1000)
    assert attended(0, 1000) == 0
    assert attended(1, 1000) == 1001
    assert 1.5 < together / 1000 < 3 < 8 <= apart / 1000


def test_a_pass_that_few_saw_says_nothing_of_those_that_many_saw() -> None:
    """Three rows were held up once: four rows and more cost no more for it."""
    costs = PassCosts(9.0)
    for _ in range(64):
        for rows in (1, 8, 12):
            costs.observe(rows, 0, cost(FLAT, rows) * ONE)
    before = costs.curve()[8]
    for _ in range(2):
        costs.observe(3, 0, 6 * ONE)
    assert costs.curve()[3] <= costs.curve()[8] == pytest.approx(before, rel=0.1)


def test_what_no_pass_confirms_fades_and_what_passes_confirm_does_not() -> None:
    """A busy hour taught a steep curve, and since then passes have had one row or two."""
    dear = [PassCosts(9.0) for _ in range(2)]
    for costs in dear:
        taught(costs, STEEP, 200)
    learnt = dear[0].curve()[12]
    for _ in range(160_000):
        dear[0].observe(1, 0, ONE)
    for _ in range(10_000):
        for rows in (1, 1, 12, 12):
            dear[1].observe(rows, 0, cost(STEEP, rows) * ONE)
    assert dear[0].curve()[12] < (learnt + shipped(9.0)[ROWS.index(12)]) / 2 + 0.1
    assert dear[0].one == pytest.approx(ONE, rel=0.02)
    assert dear[1].curve()[12] == pytest.approx(cost(STEEP, 12), rel=0.03)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([1.0, 2.0, 3.0], [1, 1, 1], [1, 2, 3]),
        ([1.0, 3.0, 2.0], [1, 1, 3], [1, 2.25, 2.25]),
        ([3.0, 2.0, 1.0], [1, 1, 1], [2, 2, 2]),
        ([0.0, 4.0, 1.0, 1.0], [1e9, 1, 1, 1], [0, 2, 2, 2]),
    ],
)
def test_the_nearest_that_rises(values, weights, expected) -> None:
    assert rising(np.array(values), np.array(weights)).tolist() == pytest.approx(expected)
