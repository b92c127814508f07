"""What the kernels leave of a row, and who wins among it, against the same in torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftproof import native, sampling
from draftproof.sampling import Noise, SamplingParams
from draftproof.sampling import compiled as fast
from sampling_oracles import LOGITS, NOTHING, WARPERS

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
CUTS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 512, "top_p": 0.9},
    {"top_p": 0.3},
    {"top_p": 0.95, "temperature": 0.7},
    {"top_p": 0.999, "temperature": 3.0},
    {"top_p": 0.9, "temperature": 0.002},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.01, "top_p": 0.8, "temperature": 1.5},
    {"min_p": 0.02, "top_k": 30, "top_p": 0.9},
]


def in_torch(call: Callable[[], Any]) -> Any:
    with mock.patch.object(fast, "found", lambda: None):
        return call()


def same_as_torch(x: Tensor, params: SamplingParams) -> bool:
    """Whether the kernels decided; what they decide must have torch's ids and torch's bits."""
    made = fast.survivors(x, params)
    if made is None:
        return False
    ids, scaled = in_torch(lambda: sampling.survivors(x, params))
    assert torch.equal(made[0], ids) and torch.equal(made[1], scaled)
    return True


@given(LOGITS, WARPERS)
def test_short_rows_leave_what_they_leave_in_torch(
    values: list[float], params: SamplingParams
) -> None:
    if not params.whole and max(values) > -math.inf:
        same_as_torch(torch.tensor(values), params)


@given(st.integers(0, 2**20), st.sampled_from(CUTS), st.sampled_from([1.0, 4.0, 12.0]))
def test_long_rows_too_and_hardly_one_is_left_to_torch(
    seed: int, cut: dict[str, Any], spread: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    params, decided = SamplingParams(**{"temperature": 1.0} | cut), 0
    for size in (65, 5_000, 49_152):
        x = torch.randn(size, generator=rng) * spread
        x[torch.rand(size, generator=rng) < 0.1] = -math.inf
        x[:2] = 0.0
        decided += same_as_torch(x, params)
    assert decided >= 2


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_winners_are_those_of_torch(cut: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 1.0} | cut)
    for seed in range(20):
        x = torch.randn(3_000, generator=torch.Generator().manual_seed(seed)) * 3
        x[::9] = x[1]  # ties
        for k in (1, 2, 5):
            args = x, params, NOTHING, []
            quick = sampling.race(*args, Noise(seed, 0), 3, k)
            slow = in_torch(functools.partial(sampling.race, *args, Noise(seed, 0), 3, k))
            assert quick[0] == slow[0]
            assert quick[1] == pytest.approx(slow[1], rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("cut", [{"top_k": 2**32 + 1}, {"top_k": 99, "temperature": 1e30}], ids=str)
def test_the_largest_parameters_cut_nothing(cut: dict[str, Any]) -> None:
    """Wider than what the kernels take them in, they would be another number there."""
    params = SamplingParams(**{"temperature": 1.0} | cut)
    x = torch.randn(60, generator=torch.Generator().manual_seed(1))
    assert len(sampling.survivors(x, params)[1]) == 60
    found = {sampling.pick(x, params, NOTHING, [], Noise(seed, 0), 3) for seed in range(40)}
    assert len(found) > 9


def test_a_border_that_rounding_decides_is_left_to_torch() -> None:
    x = torch.zeros(1_000)  # 1,000 equal shares: 0.25 of them end exactly at a token
    params = SamplingParams(temperature=1.0, top_p=0.25)
    assert fast.survivors(x, params) is None
    assert len(sampling.survivors(x, params)[1]) == 250
    assert sampling.pick(x, params, NOTHING, [], Noise(1, 0), 0) < 250


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_rows_that_nothing_can_be_picked_from(wrong: float) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    for x in (
        torch.full((40,), -math.inf),
        torch.zeros(40).index_fill(0, torch.tensor([9]), wrong),
    ):
        assert fast.survivors(x, params) is None
        with pytest.raises(sampling.NoCandidate):
            sampling.pick(x, params, NOTHING, [], Noise(0, 0), 0)
