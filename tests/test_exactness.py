"""The output never changes: token identity of every method, and the law of what is random.

Greedy decoding is compared with transformers' own `generate`; sampling with a loop over the
model's whole forward pass and a chain written in plain Python; drafts with no drafts.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from cases import PROMPTS, SAMPLED
from draftproof.sampling.noise import mix, noise
from draftproof.tree import TokenTree
from laws import WARPED, check_law, exact_law, slow_law, small, vars_of
from oracles import chi_square_p

METHODS = ("none", "ngram", "draft", "branches", "both")
TOKENS = 24


@cache
def target(name: str, dtype: torch.dtype) -> PreTrainedModel:
    untied = {"tie_word_embeddings": False} if name == "gemma3" else {}  # else it repeats itself
    return tiny.model(name, dtype=dtype, **untied)


@cache
def draft(name: str, dtype: torch.dtype) -> PreTrainedModel:
    return tiny.relative(target(name, dtype))


def speculate(method: str, name: str, dtype: torch.dtype) -> Any:
    """What `LLM(speculate=)` is given for a method of METHODS."""
    ngram = dp.NGram(min_ngram=1)
    if method in ("none", "ngram"):
        return {"none": None, "ngram": ngram}[method]
    options = {"branch": 3 if method == "branches" else 1}
    model = dp.DraftModel(draft(name, dtype), 5, min_confidence=0.0, **options)
    return [ngram, model] if method == "both" else model


def engine(method: str, name: str, dtype: torch.dtype = torch.float64, **options: Any) -> dp.LLM:
    return dp.LLM(target(name, dtype), speculate=speculate(method, name, dtype), **options)


# --- greedy: transformers' own words ---


@cache
def generated(name: str, dtype: torch.dtype) -> list[list[int]]:
    """What transformers' generate(do_sample=False) writes after each of PROMPTS."""
    outputs = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = target(name, dtype).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=TOKENS,
        )
        outputs.append(made[0, len(prompt) :].tolist())
    return outputs


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


@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", tiny.CONFIGS)
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


# --- sampling: plain decoding, one request at a time ---


def params_of(case: str, seed: int = 7, **changes: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": TOKENS, "seed": seed, **SAMPLED[case], **changes})


def slow_decoding(model: PreTrainedModel, prompt: list[int], params: dp.SamplingParams, seed: int):
    """One token after the other: the model's whole forward pass, then the chain above."""
    output: list[int] = []
    while len(output) < params.longest:
        context = [*prompt, *output]
        with torch.no_grad():
            row = model(torch.tensor([context])).logits[0, -1].double()
        left = slow_law(row.tolist(), params, prompt, output)
        if params.temperature == 0:
            best = max(left, key=lambda t: (left[t], -t))
        else:
            e = noise(seed, 0, len(context), len(row)).tolist()
            best = max(left, key=lambda t: (left[t] - math.log(e[t]), -t))
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


@pytest.mark.parametrize("method", ["draft", "both"])
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


# --- laws ---


def draft_of_small(branch: int = 1, length: int = 3) -> dp.DraftModel:
    return dp.DraftModel(small(1), length, min_confidence=0.0, branch=branch)


@pytest.mark.parametrize("branch", [1, 2])
def test_law_of_the_rejection_rule(branch: int) -> None:
    check_law("rejection", draft_of_small(branch), 3000, max_tokens=4)


def test_law_of_the_rejection_rule_with_warped_laws() -> None:
    check_law("rejection", draft_of_small(2), 1500, max_tokens=4, **WARPED)


def test_law_of_the_rejection_rule_without_laws() -> None:
    proposer = [dp.NGram(min_ngram=1), draft_of_small(2)]
    check_law("rejection", proposer, 1500)


def test_law_of_coupled_sampling() -> None:
    check_law("coupled", draft_of_small(2), 1500)


BREAKING = {
    "chain": lambda model: dp.DraftModel(model, 2, min_confidence=0.0, branch=1),
    "shaped": lambda model: dp.DraftModel(model, tree=[(0,), (0, 0)]),
    "staged": lambda model: dp.Staged(model, Silent(), 2, min_confidence=0.0, branch=1),
}


class Silent:
    """Drafts nothing, so that every pass of a draft that it drafts for writes one token."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


@pytest.mark.parametrize("kind", BREAKING)
def test_law_when_the_draft_breaks_after_some_tokens(kind: str) -> None:
    """What was drawn may not be dropped because of what it is (non-anticipation)."""
    breaking = copy.deepcopy(small(1))

    def explode(module: Any, args: Any, kwargs: Any) -> None:
        if armed and kwargs["input_ids"][0, -1].item() == 3:
            raise RuntimeError("out of luck")

    armed: list[bool] = []
    breaking.register_forward_pre_hook(explode, with_kwargs=True)
    proposer = BREAKING[kind](breaking)
    params = dp.SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True)
    seeds = [dp.SamplingParams(**{**vars_of(params), "seed": seed}) for seed in range(700)]
    with dp.LLM(small(0), speculate=proposer, rule="rejection", max_batch=1) as llm:
        armed.append(True)
        outs = llm.generate([[3, 1]] * len(seeds), seeds)
    assert any(out.warnings for out in outs) and not all(out.warnings for out in outs)
    counts = Counter(tuple(out.token_ids[:2]) for out in outs)
    assert chi_square_p(counts, exact_law(small(0), params, [3, 1], 2)) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED, {"temperature": 2.0, "min_p": 0.2}])
@pytest.mark.parametrize("confidence", [0.0, 0.5])
@pytest.mark.parametrize("branch", [1, 2, 4])
def test_law_of_the_rejection_rule_at_length(
    branch: int, confidence: float, options: dict[str, Any]
) -> None:
    proposer = dp.DraftModel(small(1), 3, min_confidence=confidence, branch=branch)
    check_law("rejection", proposer, 12000, max_tokens=5, length=4, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("proposer", [None, "ngram", "both"])
def test_laws_of_other_methods_at_length(
    rule: str, proposer: str | None, options: dict[str, Any]
) -> None:
    made = [dp.NGram(min_ngram=1), draft_of_small(3)] if proposer == "both" else proposer
    if made == "ngram":
        made = dp.NGram(min_ngram=1)
    check_law(rule, made, 12000, max_tokens=4, length=4, **options)


def test_rejection_at_temperature_0_is_greedy() -> None:
    params = dp.SamplingParams(max_tokens=TOKENS)
    llm = engine("branches", "llama", torch.float32, rule="rejection", max_batch=4)
    with llm:
        outs = llm.generate(PROMPTS, params)
    assert [out.token_ids for out in outs] == generated("llama", torch.float32)


def test_rejection_is_reproducible_from_its_seed() -> None:
    params = params_of("one")
    runs = []
    for max_batch in (1, 4):
        with engine("draft", "llama", rule="rejection", max_batch=max_batch) as llm:
            runs.append([out.token_ids for out in llm.generate(PROMPTS, params)])
            runs.append([out.token_ids for out in llm.generate(PROMPTS, params)])
    assert all(run == runs[0] for run in runs)
