"""Machines on which one row more is dear, because it begins another lot of rows of the kernels."""

from __future__ import annotations

import random

import pytest

from draftproof.proposers.auto import Auto
from draftproof.runners.costs import PassCosts
from simulated import ONE, STAIRS, Clock, Curve, Guesser, Machine, Trace, cost, texts

# SmolLM2 on one thread of an AMD EPYC: kernels of 12 rows in bfloat16, and of 6 in int8.
BFLOAT16 = ((1, 1.0), (4, 1.08), (8, 1.17), (12, 1.32), (13, 1.81), (16, 1.92), (24, 2.45))
INT8 = ((1, 1.0), (4, 1.22), (6, 1.29), (7, 1.65), (12, 2.0), (14, 2.63), (24, 3.56))
MACHINES = {"stairs": STAIRS, "bfloat16": BFLOAT16, "int8": INT8}
RATE = {"stairs": 0.97, "bfloat16": 1.02, "int8": 1.0}  # of plain decoding, hard texts


def used(curve: Curve) -> PassCosts:
    """A table that has seen many passes of up to 24 rows."""
    table, rng = PassCosts(9.0), random.Random(1)
    for _ in range(2000):
        rows = rng.randrange(1, 25)
        table.observe(rows, 0, cost(curve, rows) * ONE * rng.lognormvariate(0, 0.04))
    return table


@pytest.mark.parametrize("curve", MACHINES.values(), ids=MACHINES)
def test_a_step_is_known_on_both_sides(curve: Curve) -> None:
    known = used(curve).curve()
    for rows in range(1, 18):
        assert known[rows] == pytest.approx(cost(curve, rows), rel=0.04)


@pytest.mark.parametrize("machine", MACHINES)
def test_eight_hard_texts_are_not_slower_beside_a_step(machine: str) -> None:
    """A table that has a line where the step is has them draft as if a row were cheap."""
    rates = []
    for seed in range(4):
        curve, truths, clock = MACHINES[machine], texts(8, 130), Clock()
        traces = {number: Trace.made("hard", 131, 8 * seed + number) for number in range(8)}
        auto = Auto(Guesser(traces, dict(enumerate(truths)), clock, price=0.003), clock=clock)
        run = Machine(curve, clock, seed=seed).run(auto, truths, table=used(curve))
        rates.append(129 * cost(curve, 8) / run.total)
    assert sum(rates) / len(rates) >= RATE[machine], rates
