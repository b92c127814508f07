"""The chain from logits to a pick, against slow and obvious oracles and against the laws it owes.

The oracles work on Python lists, one token at a time, and share no code with the chain.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from draftproof.sampling import (
    History,
    NoCandidate,
    Noise,
    SamplingParams,
    adjust,
    argmax,
    argmaxes,
    draw,
    draw_distinct,
    law,
    logprobs,
    mix,
    pick,
    race,
    survivors,
)
from draftproof.sampling import noise as noises
from draftproof.sampling.noise import noise

NOTHING = History([])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of a few hundred tokens gain nothing from a second thread, and wait for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(V: int, seed: int, spread: float = 3.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(V, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


# --- oracles --------------------------------------------------------------------------------------


def oracle_adjust(
    x: list[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    end_ids: Sequence[int] = (),
) -> list[float]:
    x = list(x)
    for i in set(prompt) | set(output):
        r = params.repetition_penalty
        x[i] = x[i] / r if x[i] > 0 else x[i] * r
    for i, count in Counter(output).items():
        x[i] -= params.frequency_penalty * count + params.presence_penalty
    for i, bias in (params.logit_bias or {}).items():
        x[i] += bias
    banned = list(params.bad_token_ids)
    if len(output) < params.min_tokens:
        banned += end_ids
    for i in banned:
        x[i] = -math.inf
    return x


def oracle_survivors(x: list[float], params: SamplingParams) -> dict[int, float] | None:
    """Token -> probability, ascending; None when a border is too close to call in floats."""
    top = max(x)
    order = sorted((i for i in range(len(x)) if x[i] > -math.inf), key=lambda i: (-x[i], i))
    weight = {i: math.exp((x[i] - top) / params.temperature) for i in order}
    if any(abs(w - params.min_p) < 1e-9 for w in weight.values() if 0 < params.min_p < 1):
        return None
    order = [i for i in order if weight[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total, mass, kept = math.fsum(weight[i] for i in order), 0.0, []
        for i in order:
            kept.append(i)
            mass += weight[i] / total
            if abs(mass - params.top_p) < 1e-9:
                return None
            if mass >= params.top_p:
                break
        order = kept
    total = math.fsum(weight[i] for i in order)
    return {i: weight[i] / total for i in sorted(order)}


def oracle_race(
    logits: Tensor, params: SamplingParams, seed: int, stream: int, position: int
) -> list[int]:
    """All survivors, best first, by the exact score of every one: no bounds, no candidates."""
    ids, scaled = survivors(logits, params)
    tokens = range(len(logits)) if ids is None else ids.tolist()
    e = noise(seed, stream, position, len(logits)).tolist()
    score = {i: s - math.log(e[i]) for i, s in zip(tokens, scaled.tolist(), strict=True)}
    return sorted((i for i in score if score[i] > -math.inf), key=lambda i: (-score[i], i))


def p_value(observed: Sequence[int], expected: Sequence[float]) -> float:
    """Pearson's chi-square, its tail by Wilson and Hilferty's cube root."""
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 0]
    assert sum(observed) == sum(o for o, _ in cells), "an impossible value occurred"
    chi2 = sum((o - e) ** 2 / e for o, e in cells)
    d = len(cells) - 1
    z = ((chi2 / d) ** (1 / 3) - (1 - 2 / (9 * d))) / math.sqrt(2 / (9 * d))
    return math.erfc(z / math.sqrt(2)) / 2


# --- noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "known"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter: str, key: str, known: str) -> None:
    """Random123's kat_vectors, philox4x32-10, with ints and with tensors."""
    c, k, answer = ([int(w, 16) for w in text.split()] for text in (counter, key, known))
    assert list(noises._philox(*c, *k)) == answer
    words = noises._philox(*(torch.tensor([w, 1]) for w in c), *k)
    assert [int(w[0]) for w in words] == answer


def test_the_counter_is_block_position_stream() -> None:
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    e = [-math.log1p(-(w + 0.5) / 2**32) for w in words]
    assert noise(0, 0, 0, 4).tolist() == pytest.approx(e, rel=1e-14)
    seed = 0x299F31D0_A4093822
    block, position, stream = 7, 2**31 - 1, 2**32 - 1
    words = list(noises._philox(block, position, stream, 0, 0xA4093822, 0x299F31D0))
    e = [-math.log1p(-(w + 0.5) / 2**32) for w in words]
    assert noise(seed, stream, position, 32)[28:].tolist() == pytest.approx(e, rel=1e-14)


def test_exponential_is_accurate_at_every_size_and_the_same_for_one_and_many() -> None:
    words = [0, 1, 2, 3, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2, 2**32 - 129]
    words += [int(2**32 * (1 - 2**-0.5)) + d for d in range(-3, 4)]  # where the reduction changes
    words += [2**k + d for k in range(2, 32) for d in (-1, 0, 1)]
    words += torch.randint(2**32, (20000,), generator=torch.Generator().manual_seed(0)).tolist()
    many = noises._exponential(torch.tensor(words, dtype=torch.float64)).tolist()
    for word, e in zip(words, many, strict=True):
        assert e == noises._exponential(float(word))
        assert e == pytest.approx(-math.log1p(-(word + 0.5) / 2**32), rel=1e-15)
    # bits that another language has to reproduce
    bits = [struct.pack(">d", noises._exponential(float(w))).hex() for w in (0, 2**31, 2**32 - 1)]
    assert bits == KNOWN_BITS


KNOWN_BITS = ["3de0000000040000", "3fe62e42ff1a39ef", "4036dfb516f20bbe"]


def test_noise_is_the_same_for_any_subset_and_order() -> None:
    for V in (1, 3, 4, 1001):
        whole = noise(5, 2, 9, V)
        assert whole.shape == (V,) and whole.dtype == torch.float64
        ids = torch.randperm(V, generator=torch.Generator().manual_seed(V))
        assert torch.equal(noise(5, 2, 9, ids), whole[ids])
        assert torch.equal(noise(5, 2, 9, ids[: V // 2 + 1]), whole[ids[: V // 2 + 1]])
        assert [Noise(5, 2).exact(9, i) for i in range(V)] == whole.tolist()
    square = torch.tensor([[3, 1], [999, 3]])
    assert torch.equal(noise(5, 2, 9, square), whole[square])


def test_every_coordinate_changes_all_noise_and_nothing_is_correlated() -> None:
    base = (7, 0, 100)
    others = [(8, 0, 100), (7 + 2**32, 0, 100), (7, 1, 100), (7, 0, 101), (7, 2**32 - 1, 100)]
    e = noise(*base, 20000)
    uniform = torch.histc((-e).exp(), 20, 0, 1).int().tolist()
    assert p_value(uniform, [1000.0] * 20) > 1e-5
    for other in others:
        f = noise(*other, 20000)
        assert not (e == f).any()
        assert abs(float(torch.corrcoef(torch.stack((e, f)))[0, 1])) < 0.03


def test_noise_object_bounds_its_own_exact_values_whatever_was_asked_before() -> None:
    for V in (100, 5000, 40000):
        kept, fresh = Noise(3, 1), Noise(3, 1)
        for position in (5, 4, 6, 200, 5, 40):
            g = kept.gumbel(position, V)
            assert g.shape == (V,)
            u = -torch.expm1(-noise(3, 1, position, V))
            assert torch.allclose(g.double(), -u.log(), atol=1e-6)
            ids = torch.arange(3, V, max(1, V // 50))
            assert torch.allclose(fresh.gumbel(position, V, ids), g[ids], atol=1e-6)
        assert torch.equal(kept.gumbel(5, V - 7), kept.gumbel(5, V + 9)[: V - 7])


def test_noise_object_keeps_a_bounded_number_of_positions() -> None:
    source = Noise(0, 0)
    for position in range(100):
        source.gumbel(position, 64)
    assert len(source._kept) <= Noise.positions
    source = Noise(0, 0)
    source.elements = 3 * 40000
    for position in range(5):
        source.gumbel(position, 40000)
    assert list(source._kept) == [2, 3, 4]


def test_mix() -> None:
    seeds = [0, 1, 2, 2**64 - 1]
    mixed = [mix(s, j) for s in seeds for j in range(100)]
    assert len(set(mixed)) == len(mixed) and all(0 <= m < 2**64 for m in mixed)
    assert [mix(s, 0) for s in seeds] == seeds
    assert mix(0, 1) == 0xE220A8397B1DCDAF  # splitmix64's first output from state 0


# --- penalties, bias, bans ------------------------------------------------------------------------

PENALTIES = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.3, 0.0, 2.0]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 11), st.floats(-50, 50), max_size=3),
    bad_token_ids=st.lists(st.integers(0, 11), max_size=2),
    min_tokens=st.integers(0, 5),
)
TOKENS = st.lists(st.integers(0, 11), max_size=6)


@given(PENALTIES, TOKENS, TOKENS, TOKENS, st.sampled_from([torch.float64, torch.float32]))
def test_adjust(
    params: SamplingParams, prompt: list[int], output: list[int], path: list[int], dt: torch.dtype
) -> None:
    x = rows(12, 0, dtype=dt)
    before = x.clone()
    history = History(prompt, end_ids=[10, 11])
    history.append(output)
    row = adjust(x, params, history, path)
    wanted = oracle_adjust(x.tolist(), params, prompt, output + path, [10, 11])
    tolerance = 1e-12 if dt == torch.float64 else 1e-5
    assert row.tolist() == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    assert torch.equal(x, before)
    # the history of a node's own path is the history, to the last bit
    history.append(path)
    assert torch.equal(adjust(x, params, history, []), row)
    # a draft with a smaller vocabulary
    assert torch.equal(adjust(x[:7], params, history, []), row[:7])


def test_adjust_returns_the_given_row_when_nothing_applies() -> None:
    x = rows(12, 0)
    assert adjust(x, SamplingParams(temperature=1, top_k=3), NOTHING, [1]) is x
    history = History([1], [2])
    history.append([3])
    assert adjust(x, SamplingParams(min_tokens=2), history, [4]) is x
    assert adjust(x, SamplingParams(min_tokens=2), history, [])[2] == -math.inf
    bf16 = x.bfloat16()
    assert adjust(bf16, SamplingParams(logit_bias={1: 0.001}), NOTHING, []).dtype == torch.float32
    assert not SamplingParams(temperature=1, top_p=0.5, seed=1).adjusts
    changes = [{"repetition_penalty": 1.1}, {"presence_penalty": 1}, {"frequency_penalty": 1}]
    changes += [{"logit_bias": {1: 1.0}}, {"bad_token_ids": [1]}, {"min_tokens": 1}]
    assert all(SamplingParams(**change).adjusts for change in changes)


# --- temperature, min_p, top_k, top_p -------------------------------------------------------------

WARPERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 5, 70, 1000]),
    top_p=st.sampled_from([1e-9, 0.3, 0.77, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.21, 1.0]),
)
LOGITS = st.one_of(
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30),  # ties
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 1.0, -math.inf]), min_size=1, max_size=12),
    st.builds(lambda V, seed: rows(V, seed, 1.0).tolist(), st.integers(65, 900), st.integers(0, 9)),
)


@examples(max_examples=400)
@given(LOGITS, WARPERS, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_survivors_and_law(values: list[float], params: SamplingParams, dt: torch.dtype) -> None:
    assume(max(values) > -math.inf)
    x = torch.tensor(values, dtype=dt)
    wanted = oracle_survivors(x.tolist(), params)
    assume(wanted is not None)
    assert wanted is not None
    p = law(x, params, NOTHING, [])
    assert p.dtype == torch.float64 and float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert p.tolist() == pytest.approx([wanted.get(i, 0.0) for i in range(len(x))], abs=1e-12)
    ids, scaled = survivors(x, params)
    if ids is None:
        assert params.top_k <= 0 or params.top_k >= len(x)
        assert params.top_p == 1 and params.min_p == 0
    else:
        assert ids.tolist() == list(wanted)
    top = max(x.tolist())
    tokens = range(len(x)) if ids is None else ids.tolist()
    # bit for bit what Python computes: the same token has the same logit with or without top_k
    assert scaled.tolist() == [(x[i].item() - top) / params.temperature for i in tokens]


def kept(values: list[float], **params: float) -> list[int]:
    ids, _ = survivors(torch.tensor(values), SamplingParams(**{"temperature": 1, **params}))
    assert ids is not None
    return ids.tolist()


def test_ties_at_the_borders_go_to_the_lowest_id() -> None:
    assert kept([0, 1, 1, 1], top_k=2) == [1, 2]
    assert kept([1, 0, 1, 2, 1], top_k=3) == [0, 2, 3]
    assert kept([1.0] * 100, top_k=5) == [0, 1, 2, 3, 4]
    assert kept([0.0] * 4, top_p=0.5) == [0, 1]
    assert kept([0.0] * 4, top_p=0.51) == [0, 1, 2]
    assert kept([0.0] * 4, min_p=1) == [0, 1, 2, 3]
    assert kept([-1.0, 0.0, -1.0, 0.0], top_p=1e-9) == [1]
    # top_p's mass is renormalised over what top_k left: 1/2 of the two best, not of the four
    assert kept([0.0] * 4, top_k=2, top_p=0.5) == [0]
    assert kept([-math.inf, 0.0, -math.inf], top_k=2) == [1]
    assert kept([-math.inf, 0.0, -math.inf], top_p=1 - 2**-53) == [1]
    x = torch.zeros(70000)
    x[[65000, 500, 40000]] = 1.0
    assert pick(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0) == 500
    assert race(x, SamplingParams(), NOTHING, [], Noise(0, 0), 0, 5)[0] == [500, 40000, 65000, 0, 1]
    tied = torch.tensor([[0.0, 2.0, 2.0], [3.0, 3.0, 1.0]])
    assert argmaxes(tied) == [1, 0]


# --- the race -------------------------------------------------------------------------------------

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

    def race(self, logits: Tensor, temperature: float, position: int, k: int) -> None:
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
    expected = [q * N for q in oracle_survivors(x.tolist(), params).values()]  # type: ignore[union-attr]
    found = {}
    for kind in (Noise, SlowNoise, UniformNoise, StuckNoise):
        source = kind(2024, 0)
        picks = Counter(pick(x, params, NOTHING, [], source, position) for position in range(N))
        found[kind] = p_value([picks[i] for i in range(12)], expected)
    assert found[Noise] > 1e-5 and found[SlowNoise] == found[Noise]
    assert found[UniformNoise] < 1e-5 and found[StuckNoise] < 1e-5


def test_the_pick_follows_the_law_across_seeds_and_with_top_k() -> None:
    x, N = rows(40, 5, 1.0), 1000
    params = SamplingParams(temperature=1.2, top_k=6)
    p = law(x, params, NOTHING, [])
    picks = Counter(pick(x, params, NOTHING, [], Noise(seed, 0), 3) for seed in range(N))
    assert p_value([picks[i] for i in range(40)], [q * N for q in p.tolist()]) > 1e-5


def test_race_draws_without_replacement() -> None:
    """Second place, given the first, follows the law renormalised without it."""
    x, params, N = rows(6, 8, 1.0), SamplingParams(temperature=1), 4000
    p, source = law(x, params, NOTHING, []).tolist(), Noise(9, 0)
    pairs = Counter(tuple(race(x, params, NOTHING, [], source, i, 2)[0]) for i in range(N))
    cells = [(a, b) for a in range(6) for b in range(6) if a != b]
    expected = [N * p[a] * p[b] / (1 - p[a]) for a, b in cells]
    assert p_value([pairs[cell] for cell in cells], expected) > 1e-5


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


# --- draws and log-probabilities ------------------------------------------------------------------


def test_draw() -> None:
    rng = torch.Generator().manual_seed(3)
    p = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0], dtype=torch.float64)
    counts = Counter(draw(p, rng) for _ in range(3000))
    assert p_value([counts[i] for i in range(6)], [3000 * q for q in p.tolist()]) > 1e-5
    again = Counter(draw(3 * p.float(), rng) for _ in range(3000))  # neither float64 nor normalised
    assert p_value([again[i] for i in range(6)], [3000 * q for q in p.tolist()]) > 1e-5
    one, two = (torch.Generator().manual_seed(8) for _ in range(2))
    assert [draw(p, one) for _ in range(9)] == [draw(p, two) for _ in range(9)]
    for bad in (torch.zeros(3), torch.tensor([0.5, math.nan])):
        with pytest.raises(NoCandidate):
            draw(bad, rng)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_draw_never_returns_an_impossible_token(monkeypatch: pytest.MonkeyPatch, u: float) -> None:
    rng = torch.Generator()
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(u).double())
    for scale in (1.0, 0.3, 1e-300, 7.0):
        p = torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0]).double() * scale
        assert draw(p, rng) == (1 if u == 0 else 3)


def test_logprobs() -> None:
    x = rows(30, 6)
    total = math.log(math.fsum(math.exp(v) for v in x.tolist()))
    best = sorted(range(30), key=lambda i: -x[i].item())
    found = logprobs(x, [best[9], best[1]], 3)
    assert list(found) == [*best[:3], best[9]]
    assert list(found.values()) == pytest.approx([x[i].item() - total for i in found], rel=1e-12)
    assert list(logprobs(x, [4], 0)) == [4]
    assert len(logprobs(x, [], 99)) == 30
    assert list(logprobs(torch.zeros(5).bfloat16(), [], 2)) == [0, 1]


# --- parameters -----------------------------------------------------------------------------------

REFUSED = {
    "temperature": [-0.1, math.nan, math.inf, "1", True, None],
    "top_k": [-2, 1.0, True, None],
    "top_p": [0, -0.1, 1.1, math.nan, True],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [0, -1, math.nan, math.inf],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1, math.nan],
    "logit_bias": [{-1: 1.0}, {1: math.nan}, {1: math.inf}, {1.5: 1.0}, [1], {"1": 1.0}],
    "bad_token_ids": [[-1], [1.0], [True], 5],
    "min_tokens": [-1, 257, 1.0, False],
    "max_tokens": [-1, 1.5, True],
    "stop": ["", ["a", ""], [1], 5],
    "stop_token_ids": [[-1], [None], ["a"]],
    "ignore_eos": [1, None],
    "seed": [-1, 2**64, 1.0, True, math.nan],
    "logprobs": [-1, 21, 1.0, True],
    "n": [0, -1, 1.0, True],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in REFUSED.items() for v in vs])
def test_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_every_parameter_is_checked_and_borders_are_allowed() -> None:
    assert set(REFUSED) == set(SamplingParams.__dataclass_fields__)
    SamplingParams(temperature=5e-324, top_k=-1, top_p=1e-300, min_p=1, repetition_penalty=1e-9)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, min_tokens=256, seed=2**64 - 1)
    params = SamplingParams(temperature=1, max_tokens=0, stop="x", logprobs=20, bad_token_ids=[3])
    assert isinstance(params.temperature, float)
    assert params.stop == ("x",) and params.bad_token_ids == (3,)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    bias = {1: 2}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 3
    assert params.logit_bias == {1: 2.0}
    assert SamplingParams() == SamplingParams(stop=(), stop_token_ids=[])


def test_siblings_are_drawn_without_replacement_from_the_laws_they_tell() -> None:
    given, rng = Tensor([0.5, 0.3, 0.0, 0.2]).double(), torch.Generator().manual_seed(5)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(4000):
        ids, laws = draw_distinct(given, 2, rng)
        assert len(set(ids)) == 2 and torch.equal(laws[0], given)
        rest = given.clone()
        rest[ids[0]] = 0
        assert torch.allclose(laws[1], rest / rest.sum())
        counts[tuple(ids)] += 1
    for (first, second), seen in counts.items():
        p = float(given[first] * given[second] / (1 - given[first]))
        assert abs(seen / 4000 - p) < 5 * math.sqrt(p * (1 - p) / 4000)
    assert len(counts) == 6  # every ordered pair of the three tokens that can be drawn
    assert len(draw_distinct(given, 9, rng)[0]) == 3
