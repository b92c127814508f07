"""The compiled race against the one in torch: the same noise bits, the same picks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from draftproof import native, sampling
from draftproof.sampling import History, Noise, noise
from draftproof.sampling import compiled as fast
from draftproof.sampling.params import SamplingParams

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
NOTHING = History([])


class SlowNoise(Noise):
    """The race in torch, its noise in torch."""

    def race(
        self, logits: Tensor, params: SamplingParams, position: int, k: int, mass: bool
    ) -> None:
        return None

    def gumbel(self, position: int, vocabulary: int, ids: Tensor | None = None) -> Tensor:
        row = _bounds(self.seed, self.stream, position, vocabulary)
        return row if ids is None else row[ids]


@functools.lru_cache(maxsize=4)
def _bounds(seed: int, stream: int, position: int, vocabulary: int) -> Tensor:
    return -noise.noise(seed, stream, position, vocabulary).float().log()


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fast, "found", lambda: None)
    yield


@pytest.mark.parametrize(
    ("seed", "stream", "position"),
    [(0, 0, 0), (1, 0, 7), (2**64 - 1, 3, 2**31), (0x123456789ABCDEF, 2**32 - 1, 2**32 - 1)],
)
def test_noise_has_the_same_bits(seed: int, stream: int, position: int) -> None:
    ids = torch.cat((torch.arange(5000), torch.tensor([151_935, 2**31, 2**32 - 1])))
    made = torch.empty(ids.shape, dtype=torch.float64)
    args = seed, stream, position, ids.data_ptr(), len(ids), made.data_ptr()
    native.library().dp_exponential(*args)
    assert torch.equal(made, noise.noise(seed, stream, position, ids))


def test_the_bound_is_what_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = fast.gumbel(5, 0, 11, 10_001)
    assert quick is not None and len(quick) >= 10_001
    monkeypatch.setattr(fast, "found", lambda: None)
    slow = Noise(5, 0).gumbel(11, 10_001)
    assert torch.allclose(quick[:10_001], slow, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("V", [1, 2, 7, 64, 65, 1000, 8192])
@pytest.mark.parametrize("temperature", [0.002, 0.7, 1.0, 30.0])
def test_winners_are_those_of_torch(V: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    for seed in range(8):
        x = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 4
        x[torch.rand(V, generator=torch.Generator().manual_seed(seed)) < 0.2] = -math.inf
        x[0] = 0.0
        for k in (1, 2, 5):
            args = x, params, NOTHING, []
            quick = sampling.race(*args, Noise(seed, 0), 3, k)
            slow = sampling.race(*args, SlowNoise(seed, 0), 3, k)
            assert quick[0] == slow[0]
            assert quick[1] == pytest.approx(slow[1], rel=1e-5, abs=1e-30)
    assert sampling.race(*args, Noise(0, 0), 3, 1)[0] == [
        sampling.pick(x, params, NOTHING, [], Noise(0, 0), 3)
    ]


def test_ties_go_to_the_lowest_id() -> None:
    x = torch.zeros(200)
    x[[3, 70, 150]] = 1.0
    assert sampling.race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, 5)[0] == [
        3,
        70,
        150,
        0,
        1,
    ]


@pytest.mark.parametrize("k", [1, 3, 40])
def test_the_best_at_temperature_0(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (torch.randn(3000, generator=torch.Generator().manual_seed(k)) * 8).round() / 4
    x[::7] = -math.inf
    quick = sampling.race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, k)
    monkeypatch.setattr(fast, "found", lambda: None)
    slow = sampling.race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, k)
    assert quick[0] == slow[0] and quick[1] == pytest.approx(slow[1], rel=1e-5)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_nothing_can_be_picked_from(wrong: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    for x in (
        torch.full((40,), -math.inf),
        torch.zeros(40).index_fill(0, torch.tensor([9]), wrong),
    ):
        with pytest.raises(sampling.NoCandidate):
            sampling.race(x, params, NOTHING, [], Noise(0, 0), 0, 2)


def test_what_it_does_not_take_goes_to_torch(torch_only: None) -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert fast.race(x, 1.0, 0, 0, 0, 1, True) is fast.gumbel(0, 0, 0, 4) is None
    assert sampling.race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, 1)[0] == [
        int(x.argmax())
    ]


def test_other_rows_go_to_torch() -> None:
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for row in (x[:, 0], x[:, 0].double(), x[:, 0].bfloat16()):
        assert fast.race(row, 1.0, 0, 0, 0, 1, True) is None
    assert fast.race(x[:, 0].contiguous(), 1.0, 0, 0, 2**32, 1, True) is None


@pytest.mark.parametrize("k", [1, 5])
def test_scores_that_tie_up_to_rounding(k: int) -> None:
    """Logits that make up for the noise: bounds decide nothing, and must let all through."""
    V, place = 700, (9, 0, 4)
    e = noise.noise(*place, V)
    for temperature in (0.01, 0.7, 1.0, 50.0):
        x = (e.log() * temperature + 3).float()
        scores = (x.double() - float(x.max())) / temperature - e.log()
        wanted = sorted(range(V), key=lambda i: (-float(scores[i]), i))[:k]
        made = fast.race(x, temperature, *place, k, mass=False)
        assert made is not None and made[0] == wanted


def test_a_token_far_below_the_top_wins_where_its_noise_is_as_large() -> None:
    V, positions = 8192, range(64)
    rows = [noise.noise(3, 0, position, V) for position in positions]
    place = max(positions, key=lambda at: float(-rows[at].log().min()))
    e = rows[place]
    rare, usual = int(e.argmin()), int((e - 1).abs().argmin())
    late = float(-e[rare].log())
    assert late > 11 and rare // 64 != usual // 64
    for less, winner in ((late - 0.5, rare), (late + 0.5, usual)):
        x = torch.full((V,), -200.0)
        x[usual], x[rare] = 0.0, -less
        made = fast.race(x, 1.0, 3, 0, place, 1, mass=False)
        assert made is not None and made[0] == [winner]


@pytest.mark.slow
def test_a_million_picks_are_those_of_torch() -> None:
    """Short rows whose laws are flat, where a wrong bound or a wrong tie would show."""
    rng = torch.Generator().manual_seed(7)
    for round in range(100):
        V = 2 + 13 * round % 300
        params = SamplingParams(temperature=0.1 + round / 40)
        rows = torch.randn(100, V, generator=rng) * (0.1 + round % 5)
        seed = 10**15 * round + round
        quick, slow = Noise(seed, 0), SlowNoise(seed, 0)
        for position in range(100):
            for row in rows:
                args = row, params, NOTHING, []
                a = sampling.pick(*args, quick, position)
                assert a == sampling.pick(*args, slow, position)
