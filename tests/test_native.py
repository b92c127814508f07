"""The native runner: right against transformers, and the same bits however a pass is made up."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import draftproof as dp
import tiny
from draftproof import native
from draftproof.runners.base import Output, Work
from draftproof.tree import TokenTree
from native_models import (
    CONFIGS,
    FAR,
    FORMATS,
    PRECISIONS,
    SETS,
    as_packed,
    bits_do_not_depend_on_the_pass,
    model,
    one_by_one,
    random_tree,
    runner,
    sets,
    spread_error,
    tokens,
)

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


# --- right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, precision: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    ids = tokens(1, 40)
    with torch.no_grad():
        want = as_packed(name, precision)(torch.tensor([ids])).logits[0]
        rounded = model(name)(torch.tensor([ids])).logits[0].float()
    (output,) = runner(name, precision, kernels).forward([Work(0, [], TokenTree.chain(ids))])
    error = spread_error(output.logits, want)
    # Of what torch's own bfloat16 is off; of integers only activations are rounded further.
    assert error < spread_error(rounded, want) * {"bfloat16": 1.0}.get(precision, 5.0)
    off = (output.logits - want).square().mean(1).sqrt()  # of each row
    sure = want.topk(2).values.diff().abs()[:, 0] > 6 * off  # no near-tie
    assert sure.any() and torch.equal(output.logits.argmax(-1)[sure], want.argmax(-1)[sure])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_hidden_states_and_head(name: str) -> None:
    ids, made = tokens(2, 20), runner(name)
    with torch.no_grad():
        want = model(name, torch.float32)(torch.tensor([ids]), output_hidden_states=True)
    (output,) = made.forward([Work(0, ids[:-6], TokenTree.chain(ids[-6:]))], taps=(0, 3, -1, 4))
    for tap, rows in output.hidden.items():
        assert rows.shape == (6, 54)
        assert spread_error(rows, want.hidden_states[tap][0, -6:]) < 0.04, tap
    logits = output.logits.clone()
    assert torch.equal(made.head(output.hidden[-1]), logits)


def test_the_best_is_the_argmax() -> None:
    made, ids = runner(), tokens(3, 30)
    (full,) = made.forward([Work(0, [], TokenTree.chain(ids))])
    assert list(full.argmaxes or ()) == full.logits.argmax(-1).tolist()
    rest = [Work(1, [], TokenTree.chain(ids), greedy=True), Work(2, [], TokenTree.chain(ids[:9]))]
    first, second = made.forward(rest)
    assert len(first.logits) == 0 and list(first.argmaxes or ()) == list(full.argmaxes or ())
    assert len(second.logits) == 9 and list(second.argmaxes or ()) == list(full.argmaxes or ())[:9]


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("name", CONFIGS)
def test_bits_do_not_depend_on_the_pass(name: str, precision: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    bits_do_not_depend_on_the_pass(name, precision, kernels)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", FAR)
def test_bits_far_into_a_context(name: str, kernels: str) -> None:
    if kernels not in sets():
        pytest.skip(f"no {kernels} on this machine")
    ids, made = tokens(6, 300), runner(name, kernels=kernels)
    plain = one_by_one(made, ids)
    (output,) = made.forward([Work(0, [], TokenTree.chain(ids))])
    assert torch.equal(output.logits, plain)
    tree = random_tree(Random(6), ids[270], 24)
    (output,) = made.forward([Work(1, ids[:270], tree)])
    rows = output.logits.clone()
    for node in (0, 11, 23):
        path = [*ids[:270], ids[270], *tree.path_tokens(node)]
        assert torch.equal(rows[node], one_by_one(made, path)[-1])


def test_a_cache_that_grows_keeps_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(5, 100)
    (output,) = runner("qwen3").forward([Work(0, [], TokenTree.chain(ids))])
    want = output.logits.clone()
    monkeypatch.setattr("draftproof.runners.rows.FIRST_SLOTS", 16)
    made = runner("qwen3")
    for at in range(0, 96, 12):
        made.forward([Work(0, ids[at : at + 12], None)])
    (output,) = made.forward([Work(0, [], TokenTree.chain(ids[96:]))])
    assert torch.equal(output.logits, want[96:])


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([*CONFIGS]), st.sampled_from([*FORMATS]))
def test_every_set_is_near_the_portable_one(seed: int, name: str, precision: str) -> None:
    """Random prompts, trees and chunks, in kernels that share no arithmetic but the order."""
    rng = Random(seed)
    ids = tokens(seed, rng.randrange(1, 60))
    cut = rng.randrange(len(ids))
    tree = random_tree(rng, ids[cut], rng.randrange(1, 40))
    outputs: dict[str, Output] = {}
    for kernels in sets():
        made = runner(name, precision, kernels, threads=rng.choice([1, 2, 3]))
        made.forward([Work(0, ids[:cut], None)])
        (outputs[kernels],) = made.forward([Work(0, [], tree)])
    for output in outputs.values():
        bound = {"bfloat16": 0.03}.get(precision, 0.1)  # some round attention's weights too
        assert spread_error(output.logits, outputs["portable"].logits) < bound


METHODS: dict[str, Any] = {
    "ngram": lambda: "ngram",
    "draft": lambda: dp.DraftModel(tiny.relative(model("llama")), num_draft_tokens=4),
    "branches": lambda: dp.DraftModel(tiny.relative(model("llama")), branch=3),
    "both": lambda: ["ngram", dp.DraftModel(tiny.relative(model("llama"), 0.3))],
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", METHODS)
def test_speculation_changes_no_token(method: str, precision: str) -> None:
    plain = dp.LLM(
        model("llama"), runner="native", dtype=as_dtype(precision), max_batch=4, speculate=None
    )
    llm = dp.LLM(plain, speculate=METHODS[method](), max_batch=3)
    prompts = [tokens(seed, 3 + seed % 20) * 2 for seed in range(8)]
    accepted = 0
    for temperature in (0.0, 1.0):
        params = dp.SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True)
        want = [plain.generate([prompt], params)[0].token_ids for prompt in prompts]
        got = llm.generate(prompts, params)
        assert [one.token_ids for one in got] == want
        assert not any(one.warnings for one in got)
        accepted += sum(one.stats.accepted for one in got)
        assert llm.generate(prompts[0], params)[0].token_ids == want[0]
    assert accepted > 0


def as_dtype(precision: str) -> str:
    return "int8" if precision == "int8" else "auto"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_logprobs_and_filters(temperature: float) -> None:
    """Whatever looks at a row gets the row; the rejection rule too."""
    plain = dp.LLM(model("llama"), runner="native", speculate=None)
    llm = dp.LLM(plain, speculate=METHODS["draft"]())
    params = dp.SamplingParams(
        temperature=temperature,
        top_p=0.9,
        repetition_penalty=1.2,
        logprobs=3,
        seed=1,
        max_tokens=24,
        ignore_eos=True,
    )
    (a,), (b,) = plain.generate([tokens(1, 9)], params), llm.generate([tokens(1, 9)], params)
    assert a.token_ids == b.token_ids and a.logprobs == b.logprobs
    rejection = dp.LLM(plain, speculate=METHODS["draft"](), rule="rejection")
    (c,) = rejection.generate([tokens(1, 9)], params)
    assert len(c.token_ids) == 24 and (temperature or c.token_ids == a.token_ids)


def test_the_prefix_cache_changes_no_bit() -> None:
    llm = dp.LLM(model("qwen3"), runner="native", prefix_cache=True, speculate=None)
    params = dp.SamplingParams(max_tokens=8, ignore_eos=True)
    first, prompt = llm.generate(tokens(1, 30), params)[0], tokens(1, 30)
    again = llm.generate([*prompt, *first.token_ids, 7], params)[0]
    fresh = dp.LLM(model("qwen3"), runner="native", speculate=None).generate(
        [*prompt, *first.token_ids, 7], params
    )[0]
    assert again.token_ids == fresh.token_ids
