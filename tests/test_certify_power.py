"""What tests of law can see, and the contexts that they are run behind."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import torch

import draftproof as dp
from draftproof.certify import chi_square, contexts
from draftproof.certify.plain import Reference
from draftproof.request import Request
from planted import PROMPTS


def test_what_could_be_seen() -> None:
    """Of two bins the statistic is a square of a normal variable: 99% beyond the border."""
    border, beyond = 3.2905, 2.3263  # two-sided 0.001, one-sided 0.01
    assert math.isclose(chi_square.visible(2, 100, 1e-3), (border + beyond) / 2 / 10, rel_tol=1e-3)
    assert chi_square.visible(1, 1000, 1e-3) == math.inf
    p = torch.full((8,), 1 / 8, dtype=torch.float64)
    off = chi_square.visible(8, 400, 1e-3)
    q = p + off / 4 * torch.tensor([1.0, -1.0] * 4)
    rng, want = torch.Generator().manual_seed(0), {(i,): 1 / 8 for i in range(8)}
    drawn = torch.multinomial(q, 400 * 300, replacement=True, generator=rng).view(300, 400)
    counts = [Counter((i,) for i in row) for row in drawn.tolist()]
    found = sum(chi_square.chi_square(want, one, 400)[1] < 1e-3 for one in counts)
    assert 290 <= found <= 300


def test_rare_outcomes_join_what_begins_like_them() -> None:
    want = {(a, b, c): 1 / 64 for a in range(4) for b in range(4) for c in range(4)}
    for runs, bins in ((1000, 64), (100, 16), (50, 4), (10, 1)):
        names = chi_square.pooled(want, runs)
        assert len({*names.values()}) == bins and names.keys() == want.keys()
    assert chi_square.pooled(want, 50)[1, 2, 3] == (1, chi_square.POOL)


@cache
def lookups() -> tuple[int, int]:
    """How many of the candidates n-grams find something behind, plain and said again."""
    row = torch.arange(97.0)
    refs = [
        Reference(
            0, PROMPTS[1], dp.SamplingParams(), [70 + i for i in range(12)], "length", [row] * 12
        )
    ]
    listed = contexts.candidates(refs, 128, plain=True)
    trees = [
        len(dp.NGram(max_ngram=3).propose([Request(0, one.ids, dp.SamplingParams(), seed=0)])[0])
        for one in listed
    ]
    return trees[0], trees[1]


def test_what_was_written_is_said_again() -> None:
    plain, again = lookups()
    assert plain == 1 and again > 1
