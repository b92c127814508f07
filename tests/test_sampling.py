"""Penalties, truncation, draws and parameters, against slow and obvious oracles."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from chi_square import chi_square_p
from draftproof.sampling import (
    History,
    NoCandidate,
    Noise,
    SamplingParams,
    adjust,
    argmaxes,
    draw,
    draw_distinct,
    law,
    logprobs,
    pick,
    race,
    survivors,
)
from sampling_oracles import (
    LOGITS,
    NOTHING,
    WARPERS,
    oracle_adjust,
    oracle_survivors,
    rows,
)

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


# --- draws and log-probabilities ------------------------------------------------------------------


def test_draw() -> None:
    rng = torch.Generator().manual_seed(3)
    p = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0], dtype=torch.float64)
    counts = Counter(draw(p, rng) for _ in range(3000))
    assert chi_square_p(counts, dict(enumerate(p.tolist()))) > 1e-5
    again = Counter(draw(3 * p.float(), rng) for _ in range(3000))  # neither float64 nor normalised
    assert chi_square_p(again, dict(enumerate(p.tolist()))) > 1e-5
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
    "speculate": [None, 1, 0.5, ["ngram"]],
    "max_draft_nodes": [-1, 0.5, "1"],
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
    "prompt_logprobs": [-1, 21, 1.0, True],
    "n": [0, -1, 1.0, True],
    "resume": [5, "text", [1.0], ["a"], [[1], [2]]],
    "grammar": ["a+", {"type": "object"}, True],
    "prediction": [5, [1.0], [-1], ["a"]],
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
    assert SamplingParams() == SamplingParams(stop=None, stop_token_ids=None, bad_token_ids=None)


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
