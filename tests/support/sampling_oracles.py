"""The chain from logits to a pick on Python lists, one token at a time; shares no code with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from draftproof.sampling import History, SamplingParams

NOTHING = History([])


def rows(V: int, seed: int, spread: float = 3.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(V, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


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


def oracle_law(
    x: list[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> dict[int, float]:
    """Token -> probability, after everything before it; 2 ends a text."""
    x = oracle_adjust(x, params, prompt, output, [2, *params.stop_token_ids])
    if params.temperature == 0:
        return {max(range(len(x)), key=lambda i: (x[i], -i)): 1.0}
    kept = oracle_survivors(x, params)
    assert kept is not None, "a border is too close to call"
    return kept
