"""Medusa: heads that are right by construction, heads that are often right; no token changes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
import tiny
from cases import PROMPTS
from drafters import NATIVE, check_counters
from draftproof import bundled
from draftproof.bundled import prompts
from draftproof.heads.module import Heads
from draftproof.proposers.medusa import Medusa
from fitted_heads import (
    CHAIN,
    KINDS,
    D,
    K,
    V,
    accepted,
    case_of,
    fitted,
    llm_of,
    params,
    plain,
    random,
    random_heads,
    sizes,
    tokens_of,
)
from laws import check_law, small


def check(name: str, case: str, proposer: Any, dtype: torch.dtype = torch.float64, **more: Any):
    with llm_of(name, proposer, dtype, **more) as llm:
        outs = llm.generate(PROMPTS, params(**case_of(case)))
    assert tokens_of(outs) == plain(name, case, dtype)
    assert 0 < accepted(outs) < sum(out.stats.drafted for out in outs)
    return outs


@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.slow), "gemma3"])
@pytest.mark.parametrize("case", ["greedy", "everything"])
def test_heads_do_not_change_a_token(name: str, case: str, max_batch: int) -> None:
    check(name, case, Medusa(fitted(name), "grown"), max_batch=max_batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["greedy_penalties", "hot"])
def test_every_kind_of_tree(case: str, kind: str) -> None:
    outs = check("llama", case, Medusa(fitted("llama"), KINDS[kind], nodes=8), max_batch=3)
    for out in outs:
        assert out.stats.drafted <= 8 * (out.stats.steps - 1), "the first step has no hidden state"


@NATIVE
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("case", ["greedy", "everything"])
def test_not_a_bit_on_the_native_runner(name: str, case: str) -> None:
    heads, options = fitted(name, torch.bfloat16), {"runner": "native", "max_batch": 3}
    check(name, case, Medusa(heads, "calibrated"), torch.bfloat16, **options)
    check(name, case, Medusa(heads, "grown", nodes=6), torch.bfloat16, **options)


def test_the_rejection_rule_is_greedy_at_temperature_0() -> None:
    check("llama", "greedy", Medusa(fitted("llama")), rule="rejection", max_batch=4)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_counters_are_those_of_the_trace(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [params(), params(temperature=0.4, stop_token_ids=(30, 31, 32))]
    with llm_of("llama", Medusa(fitted("llama"), "grown"), rule=rule, max_batch=3) as llm:
        check_counters(monkeypatch, llm, PROMPTS, some)


def test_the_law_of_the_rejection_rule() -> None:
    outputs = small(1).lm_head.weight.detach().repeat(2, 1, 1)
    heads = Heads(random(2, 1, 16, 16), None, outputs, vocab_size=4)
    check_law("rejection", Medusa(heads, nodes=5), 600, max_tokens=4)


def test_among_other_methods() -> None:
    parts = [dp.NGram(min_ngram=1), Medusa(fitted("llama"), nodes=6)]
    outs = check("llama", "one", parts, max_batch=4)
    with llm_of("llama", parts[0]) as llm:
        alone = llm.generate(PROMPTS, params(**case_of("one")))
    assert sum(o.stats.steps for o in outs) < sum(o.stats.steps for o in alone)


# --- heads that are right by construction ---


def without_context(dtype: torch.dtype = torch.float64) -> Any:
    """A Llama whose hidden state is its last token's embedding, normalised."""
    model = tiny.model("llama", dtype=dtype, **sizes(dtype))
    model.model.embed_tokens.weight.data.copy_(random(V, D, scale=1.0))  # it has a row of zeros
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return model


def state_of(model: Any) -> Tensor:
    """The hidden state behind each token, (V, d)."""
    return model.model.norm(model.model.embed_tokens.weight).detach()


def always_right(model: Any, heads: Heads, **options: Any) -> list[dp.Completion]:
    """Whatever is drafted is accepted, and three tokens are drafted in every step but the first."""
    with dp.LLM(model, speculate=Medusa(heads, CHAIN), max_batch=2, **options) as llm:
        outs = llm.generate(PROMPTS, params(max_tokens=1 + 4 * 5, temperature=1.0))
    tokens_of(outs)
    for out in outs:
        assert out.stats.accepted == out.stats.drafted == 3 * 5
        assert out.stats.accepted_per_position == [5, 5, 5]
        assert len(set(out.token_ids)) > 3, "nothing happens"
    return outs


RUNNERS = [
    ("torch", torch.float64),
    pytest.param("native", torch.bfloat16, marks=NATIVE),
]


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_heads_race_the_noise_of_the_position_of_their_token(
    runner: str, dtype: torch.dtype
) -> None:
    """One law for all positions: untrained heads have it, and the noise decides."""
    model = without_context(dtype=dtype)
    model.model.embed_tokens.weight.data[:] = model.model.embed_tokens.weight.data[3]
    model.lm_head.weight.data *= 0.2  # nearer to uniform
    heads = Heads(torch.zeros(K, 1, D, D), vocab_size=V)
    always_right(model, heads, runner=runner)


def permuted(shift: int, dtype: torch.dtype) -> tuple[Any, Heads]:
    """A target that writes (token + 5) mod V, and heads that know it, `shift` places off."""
    model = without_context(dtype=dtype)
    rows = torch.nn.functional.normalize(state_of(model).double(), dim=1) * 200
    model.lm_head.weight.data[:] = rows.roll(5, 0)  # token t + 5 has the state of t
    outputs = [rows.roll(5 * (k + 1 + shift), 0) for k in range(1, K + 1)]
    return model, Heads(torch.zeros(K, 1, D, D), None, torch.stack(outputs), vocab_size=V)


@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_head_k_guesses_the_kth_token_after_the_next(runner: str, dtype: torch.dtype) -> None:
    outs = always_right(*permuted(0, dtype), runner=runner)
    for out in outs:
        text = [out.prompt_token_ids[-1], *out.token_ids]
        assert all(b == (a + 5) % V for a, b in itertools.pairwise(text))


@pytest.mark.parametrize("shift", [-1, 1])
def test_heads_for_another_place_are_never_right(shift: int) -> None:
    model, heads = permuted(shift, torch.float64)
    with dp.LLM(model, speculate=Medusa(heads, CHAIN)) as llm:
        outs = llm.generate(PROMPTS, params())
    assert accepted(outs) == 0 < sum(out.stats.drafted for out in outs)


def test_heads_in_bfloat16_for_a_target_in_float64() -> None:
    half = copy.deepcopy(fitted("llama")).to(torch.bfloat16)
    check("llama", "one", Medusa(half), max_batch=4)


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"min_confidence": -0.1}, "min_confidence"),
        ({"tree": "dense"}, "'dense' is unknown"),
        ({"tree": "calibrated"}, "without accuracies"),
        ({"tree": []}, "list of paths"),
        ({"tree": [()]}, "list of paths"),
        ({"tree": [(0,), (1, 0)]}, r"not \(1,\)"),
        ({"tree": [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]}, "4 deep and there are 3 heads"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Medusa(random_heads(), **options)


@pytest.mark.parametrize("shape", [(3, 1, D), (0, 1, D, D), (3, 0, D, D), (3, 1, D, D - 1)])
def test_weights_that_are_no_heads(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Heads(torch.zeros(shape), vocab_size=V)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("runner", "dtype"), RUNNERS)
def test_heads_of_another_target(runner: str, dtype: torch.dtype, own: bool) -> None:
    for size, vocabulary in ((D + 8, V), (D - 8, V), (D, V + 3), (D, V - 3)):
        outputs = random(K, vocabulary, size) if own else None
        heads = Heads(random(K, 1, size, size), None, outputs, vocab_size=vocabulary)
        with pytest.raises(ValueError, match="heads of this target") as caught:
            llm_of("llama", Medusa(heads), dtype, runner=runner)
        assert f"({size}, {vocabulary})" in str(caught.value)
        assert f"({D}, {V})" in str(caught.value)


def test_the_bundled_heads_draft_for_the_bundled_target() -> None:
    heads = dp.Medusa(bundled.folder("heads"))
    params = dp.SamplingParams(max_tokens=32)
    with dp.LLM(bundled.folder("target"), dtype="float32", runner="torch", speculate=None) as llm:
        plain = llm.generate(prompts.PROMPTS, params)
        llm.use(heads)
        fast = llm.generate(prompts.PROMPTS, params)
    assert [one.token_ids for one in fast] == [one.token_ids for one in plain]
    steps = sum(one.stats.steps for one in fast)
    assert sum(one.stats.tokens for one in fast) > 1.5 * steps
