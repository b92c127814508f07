"""The race that picks a token, against the naive one and against the laws it owes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from chi_square import chi_square_p
from draftproof.sampling import (
    History,
    NoCandidate,
    Noise,
    SamplingParams,
    argmax,
    argmaxes,
    law,
    logprobs,
    pick,
    race,
    survivors,
)
from draftproof.sampling.noise import noise
from sampling_oracles import NOTHING, oracle_survivors, rows


def oracle_race(
    logits: Tensor, params: SamplingParams, seed: int, stream: int, position: int
) -> list[int]:
    """All survivors, best first, by the exact score of every one: no bounds, no candidates."""
    ids, scaled = survivors(logits, params)
    tokens = range(len(logits)) if ids is None else ids.tolist()
    e = noise(seed, stream, position, len(logits)).tolist()
    score = {i: s - math.log(e[i]) for i, s in zip(tokens, scaled.tolist(), strict=True)}
    return sorted((i for i in score if score[i] > -math.inf), key=lambda i: (-score[i], i))


RACES = [
    *({"temperature": t} for t in (1e-300, 1e-6, 1e-3, 0.05, 0.7, 1.0, 10.0, 1e6)),
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.5, "min_p": 0.02, "top_k": 100, "top_p": 0.99},
]
SHAPES: dict[str, Callable[[int], Tensor]] = {
    "float32": lambda seed: rows(700, seed),
    "float64": lambda seed: rows(700, seed, dtype=torch.float64) + 1e6,
    "bfloat16": lambda seed: rows(700, seed, dtype=torch.bfloat16),  # many ties
    "flat": lambda seed: torch.zeros(700),
    "peaked": lambda seed: rows(700, seed, 40.0),
    "banned": lambda seed: rows(700, seed).where(torch.arange(700) % 7 == seed % 7, -math.inf),
    "large": lambda seed: rows(17001, seed, 1.0),
}


@pytest.mark.parametrize("settings", RACES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_race_and_pick_against_the_naive_race(shape: str, settings: dict[str, float]) -> None:
    params = SamplingParams(**settings)
    source = Noise(2**63 + 11, 3)
    for seed in range(2 if shape == "large" else 5):
        x, position = SHAPES[shape](seed), 1000 + seed
        wanted = oracle_race(x, params, source.seed, source.stream, position)
        assert pick(x, params, NOTHING, [], source, position) == wanted[0]
        for k in (1, 4, 60):
            tokens, p = race(x, params, NOTHING, [], Noise(source.seed, 3), position, k)
            assert tokens == wanted[:k]
            full = law(x, params, NOTHING, [])
            assert p == pytest.approx(full[tokens].tolist(), rel=1e-4, abs=1e-30)


class SlowNoise(Noise):
    """Without the compiled race, which asks nobody for its exact noise."""

    def race(
        self, logits: Tensor, params: SamplingParams, position: int, k: int, mass: bool
    ) -> None:
        return None


class TinyNoise(SlowNoise):
    """u between 2**-33 and 2**-23, where E / u is 1 to seven digits: bounds decide nothing."""

    def word(self, token: int) -> int:
        return token * 7919 % 1024

    def exact(self, position: int, token: int) -> float:
        return -math.log1p(-(self.word(token) + 0.5) / 2**32)

    def gumbel(self, position: int, vocabulary: int, ids: Tensor | None = None) -> Tensor:
        u = torch.tensor([(self.word(i) + 0.5) / 2**32 for i in range(vocabulary)])
        return -u.log()


def test_the_slack_covers_the_rounding_of_the_bounds() -> None:
    """Rows made so that all scores tie up to float32's rounding of the logits themselves."""
    source, V = TinyNoise(0, 0), 600
    e = [source.exact(0, i) for i in range(V)]
    for seed in range(20):
        scale = 1 + seed / 7
        x = (torch.tensor(e).double().log() * scale + seed).float()
        score = [(v - x.max().item()) / scale - math.log(e[i]) for i, v in enumerate(x.tolist())]
        wanted = sorted(range(V), key=lambda i: (-score[i], i))
        params = SamplingParams(temperature=scale)
        for k in (1, 5):
            assert race(x, params, NOTHING, [], source, 0, k)[0] == wanted[:k]


def test_race_at_temperature_0() -> None:
    x = rows(50, 1)
    tokens, p = race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, 4)
    assert tokens == sorted(range(50), key=lambda i: -x[i].item())[:4]
    assert p == pytest.approx(x.double().softmax(0)[tokens].tolist(), rel=1e-5)
    assert law(x, SamplingParams(), NOTHING, []).nonzero().tolist() == [[tokens[0]]]
    x[5:] = -math.inf
    assert len(race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, 9)[0]) == 5


class UniformNoise(SlowNoise):
    """Broken: races p / u instead of p / E."""

    def exact(self, position: int, token: int) -> float:
        return -math.expm1(-super().exact(position, token))


class StuckNoise(SlowNoise):
    """Broken: every second position repeats the one before, with its token's neighbour's noise."""

    def exact(self, position: int, token: int) -> float:
        return super().exact(position, token // 2)

    def gumbel(self, position: int, vocabulary: int, ids: Tensor | None = None) -> Tensor:
        assert ids is None
        return super().gumbel(position, vocabulary)[torch.arange(vocabulary) // 2]


def test_the_pick_follows_the_law_and_a_broken_one_does_not() -> None:
    x, params, N = rows(12, 4, 1.5), SamplingParams(temperature=0.9), 4000
    expected = oracle_survivors(x.tolist(), params)
    assert expected is not None
    found = {}
    for kind in (Noise, SlowNoise, UniformNoise, StuckNoise):
        source = kind(2024, 0)
        picks = Counter(pick(x, params, NOTHING, [], source, position) for position in range(N))
        found[kind] = chi_square_p(picks, expected)
    assert found[Noise] > 1e-5 and found[SlowNoise] == found[Noise]
    assert found[UniformNoise] < 1e-5 and found[StuckNoise] < 1e-5


def test_the_pick_follows_the_law_across_seeds_and_with_top_k() -> None:
    x, N = rows(40, 5, 1.0), 1000
    params = SamplingParams(temperature=1.2, top_k=6)
    p = law(x, params, NOTHING, [])
    picks = Counter(pick(x, params, NOTHING, [], Noise(seed, 0), 3) for seed in range(N))
    assert chi_square_p(picks, dict(enumerate(p.tolist()))) > 1e-5


def test_race_draws_without_replacement() -> None:
    """Second place, given the first, follows the law renormalised without it."""
    x, params, N = rows(6, 8, 1.0), SamplingParams(temperature=1), 4000
    p, source = law(x, params, NOTHING, []).tolist(), Noise(9, 0)
    pairs = Counter(tuple(race(x, params, NOTHING, [], source, i, 2)[0]) for i in range(N))
    cells = [(a, b) for a in range(6) for b in range(6) if a != b]
    expected = {(a, b): p[a] * p[b] / (1 - p[a]) for a, b in cells}
    assert chi_square_p(pairs, expected) > 1e-5


def test_target_and_draft_agree_as_the_coupling_promises() -> None:
    """P(same pick) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)."""
    x, params, N = rows(8, 1, 1.0), SamplingParams(temperature=1), 2000
    y, source = x + rows(8, 2, 0.5), Noise(1, 0)
    p, q = (law(z, params, NOTHING, []) for z in (x, y))
    wanted = sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in range(8))
    same = sum(
        pick(x, params, NOTHING, [], source, i) == pick(y, params, NOTHING, [], source, i)
        for i in range(N)
    )
    assert abs(same / N - wanted) < 4.5 * math.sqrt(wanted * (1 - wanted) / N)


@pytest.mark.parametrize("dt", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_row_knows_nothing_of_other_rows(dt: torch.dtype) -> None:
    matrix = torch.stack([rows(301, seed, dtype=dt) for seed in range(9)])
    strided = torch.stack((matrix, matrix), dim=-1)[..., 0]
    before = matrix.clone()
    for settings in ({}, {"temperature": 0.9}, {"temperature": 1, "top_p": 0.8},
                     {"temperature": 1, "top_k": 9, "repetition_penalty": 1.2}):  # fmt: skip
        params, history = SamplingParams(**settings), History([1, 2])
        together, alone = Noise(4, 0), [Noise(4, 0) for _ in range(9)]
        for i in reversed(range(9)):
            a = pick(matrix[i], params, history, [3], together, i)
            assert a == pick(matrix[i].clone(), params, history, [3], alone[i], i)
            assert a == pick(strided[i], params, history, [3], alone[i], i)
            assert torch.equal(
                law(strided[i], params, history, [3]), law(matrix[i].clone(), params, history, [3])
            )
    assert torch.equal(matrix, before)
    picks = [pick(row, SamplingParams(), NOTHING, [], together, 0) for row in matrix]
    assert argmaxes(matrix) == picks


@pytest.mark.parametrize("settings", [{}, {"temperature": 1}, {"temperature": 1, "top_k": 2},
                                      {"temperature": 1, "top_p": 0.5},
                                      {"temperature": 1e-9, "min_p": 0.1}])  # fmt: skip
@pytest.mark.parametrize("dt", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_without_a_pick_raise(settings: dict[str, float], dt: torch.dtype) -> None:
    params = SamplingParams(**settings)
    nan, inf, banned = torch.zeros(3, 40, dtype=dt)
    nan[17], inf[17], banned[:] = math.nan, math.inf, -math.inf
    for row, cause in ((nan, "NaN"), (inf, r"\+inf"), (banned, "banned")):
        for use in (
            lambda r: pick(r, params, NOTHING, [], Noise(0, 0), 0),
            lambda r: race(r, params, NOTHING, [], Noise(0, 0), 0, 3),
            lambda r: law(r, params, NOTHING, []),
            lambda r: logprobs(r, [1], 2),
            lambda r: argmax(r),
        ):
            with pytest.raises(NoCandidate, match=cause):
                use(row)
    everything = SamplingParams(**settings, bad_token_ids=range(40))
    with pytest.raises(NoCandidate, match="banned"):
        pick(torch.zeros(40, dtype=dt), everything, NOTHING, [], Noise(0, 0), 0)
    assert issubclass(NoCandidate, ValueError)
