"""Batches of texts that are all but copied: their drafts run, however many rows that makes."""

from __future__ import annotations

import pytest

from draftproof.proposers.auto import Auto
from simulated import STEEP, Clock, Guesser, Machine, Trace, accept, cost, known, made, texts

FREE, LENGTH = 0.005, 200


def always(count: int, longest: int, truths: list[list[int]], seed: int) -> float:
    """What drafting so many tokens for each in every step takes."""
    guesser, total = source(count, longest, truths, seed, Clock()), 0.0
    requests = [made(number, truth) for number, truth in enumerate(truths)]
    while going := [request for request in requests if request.room > 0]:
        trees = guesser.propose(going)
        total += cost(STEEP, sum(map(len, trees))) + FREE
        for request, tree in zip(going, trees, strict=True):
            accept(request, tree, truths[request.key])
    return total


def source(count: int, longest: int, truths: list[list[int]], seed: int, clock: Clock) -> Guesser:
    traces = {n: Trace.made("sure", LENGTH + 1, 100 * seed + n) for n in range(count)}
    return Guesser(traces, dict(enumerate(truths)), clock, price=FREE, longest=longest)


@pytest.mark.parametrize("count", [4, 16])
def test_sure_texts_come_near_the_best_fixed_length(count: int) -> None:
    """Where every token that a text is ahead made its next one worth less, they took turns."""
    rates, truths = [], texts(count, LENGTH)
    for seed in range(2):
        clock = Clock()
        auto = Auto(source(count, 16, truths, seed, clock), clock=clock)
        run = Machine(STEEP, clock, seed=seed).run(auto, truths, table=known(STEEP))
        best = min(always(count, longest, truths, seed) for longest in (4, 8, 16))
        rates.append(best / run.total)
    assert sum(rates) / len(rates) >= 0.96
