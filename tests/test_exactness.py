"""The output never changes: token identity of every method.

Greedy decoding is compared with transformers' own `generate`; sampling with a loop over the
model's whole forward pass and a chain written in plain Python; drafts with no drafts.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from cases import PROMPTS, SAMPLED
from draftproof.sampling.noise import mix, noise
from sampling_oracles import oracle_law
from speculating import TOKENS, engine, generated, params_of, target

METHODS = ("none", "ngram", "draft", "branches", "both")


def check_greedy(name: str, method: str, dtype: torch.dtype, max_batch: int) -> None:
    with engine(method, name, dtype, max_batch=max_batch) as llm:
        outs = llm.generate(PROMPTS, dp.SamplingParams(max_tokens=TOKENS))
    assert [out.token_ids for out in outs] == generated(name, dtype)
    ends = {True: "stop", False: "length"}
    for out, prompt in zip(outs, PROMPTS, strict=True):
        assert out.finish_reason == ends[out.token_ids[-1] == 2]
        assert out.prompt_token_ids == prompt
        assert out.warnings == [] and out.error is None
        assert out.stats.tokens == len(out.token_ids) == len(out.from_draft)
        assert sum(out.from_draft) == out.stats.accepted == sum(out.stats.accepted_per_position)
        assert out.stats.steps + out.stats.accepted >= out.stats.tokens
    if method in ("draft", "branches", "both"):
        assert sum(out.stats.accepted for out in outs) > 0, "nothing accepted: nothing tested"


@pytest.mark.parametrize(
    ("name", "method", "max_batch"),
    [("llama", method, 1) for method in METHODS] + [(name, "both", 4) for name in tiny.CONFIGS],
)
def test_greedy_equals_transformers(name: str, method: str, max_batch: int) -> None:
    check_greedy(name, method, torch.float32, max_batch)


@pytest.mark.parametrize("method", ["none", "branches"])
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_greedy_equals_transformers_in_fp64(name: str, method: str) -> None:
    check_greedy(name, method, torch.float64, 4)


@pytest.mark.slow
@pytest.mark.parametrize("max_batch", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_greedy_equals_transformers_everywhere(name: str, method: str, max_batch: int) -> None:
    check_greedy(name, method, torch.float64, max_batch)


def slow_decoding(model: PreTrainedModel, prompt: list[int], params: dp.SamplingParams, seed: int):
    """One token after the other: the model's whole forward pass, then the chain above."""
    output: list[int] = []
    while len(output) < params.longest:
        context = [*prompt, *output]
        with torch.no_grad():
            row = model(torch.tensor([context])).logits[0, -1].double()
        left = oracle_law(row.tolist(), params, prompt, output)
        e = noise(seed, 0, len(context), len(row)).tolist()
        best = max(left, key=lambda t: (math.log(left[t]) - math.log(e[t]), -t))
        output.append(best)
        if best == 2 or best in params.stop_token_ids:
            break
    return output


@cache
def plain(name: str, case: str, seed: int) -> tuple[tuple[int, ...], ...]:
    """Our own plain decoding of PROMPTS, one at a time."""
    with engine("none", name, max_batch=1) as llm:
        outs = [llm.generate(prompt, params_of(case, seed))[0] for prompt in PROMPTS]
    return tuple(tuple(out.token_ids) for out in outs)


@pytest.mark.parametrize("case", SAMPLED)
def test_plain_decoding_equals_a_slow_loop(case: str) -> None:
    params = params_of(case, max_tokens=12)
    model = target("llama", torch.float64)
    for prompt, tokens in zip(PROMPTS, plain("llama", case, 7), strict=True):
        assert tokens[:12] == tuple(slow_decoding(model, prompt, params, 7))


def test_completion_j_of_n_uses_the_mixed_seed() -> None:
    params = params_of("one", n=3, max_tokens=8)
    with engine("draft", "llama") as llm:
        outs = llm.generate(PROMPTS[1], params)
    for j, out in enumerate(outs):
        assert out.index == j
        seed = mix(7, j)
        model = target("llama", torch.float64)
        assert out.token_ids == slow_decoding(model, PROMPTS[1], params, seed)


def check_coupled(name: str, case: str, method: str, seed: int = 7) -> None:
    with engine(method, name, max_batch=3) as llm:
        outs = llm.generate(PROMPTS, params_of(case, seed))
    assert tuple(tuple(out.token_ids) for out in outs) == plain(name, case, seed)


@pytest.mark.parametrize("method", [pytest.param("draft", marks=pytest.mark.slow), "both"])
@pytest.mark.parametrize("case", SAMPLED)
def test_drafts_do_not_change_a_sampled_token(case: str, method: str) -> None:
    check_coupled("llama", case, method)


@pytest.mark.parametrize("case", ["hot", "everything"])
@pytest.mark.parametrize("method", ["ngram", "branches"])
def test_other_methods_do_not_change_a_sampled_token(case: str, method: str) -> None:
    check_coupled("gemma3", case, method)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", SAMPLED)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_no_draft_changes_a_sampled_token_anywhere(
    name: str, case: str, method: str, seed: int
) -> None:
    check_coupled(name, case, method, seed)


def test_parameters_of_one_request_do_not_leak_into_another() -> None:
    each = [params_of(case, seed) for seed, case in enumerate(SAMPLED)]
    prompts = [PROMPTS[i % 4] for i in range(len(each))]
    with engine("both", "qwen3", max_batch=5) as llm:
        outs = llm.generate(prompts, each)
    with engine("none", "qwen3", max_batch=1) as llm:
        for prompt, params, out in zip(prompts, each, outs, strict=True):
            assert out.token_ids == llm.generate(prompt, params)[0].token_ids


def test_fp32_coupled_sampling_with_drafts_equals_plain() -> None:
    params = params_of("one", max_tokens=40)
    outs = {}
    for method in ("none", "both"):
        with engine(method, "mistral", torch.float32, max_batch=1 + 2 * (method == "both")) as llm:
            outs[method] = [out.token_ids for out in llm.generate(PROMPTS, params)]
    assert outs["none"] == outs["both"]
