"""The facade: shapes of the question and of the answer, chat, logprobs, the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof.tree import TokenTree
from facade import TEXT, llm, params, refused
from spelling import model, tokenizer

# --- shapes of the question and of the answer ---


def test_prompts_of_every_kind(plain_llm: dp.LLM) -> None:
    ids = tokenizer()(TEXT)["input_ids"]
    assert tokenizer().decode(ids) == TEXT
    one = plain_llm.generate(TEXT, params())
    assert len(one) == 1
    (tokens,) = (out.token_ids for out in one)
    for prompts in (ids, [TEXT], [ids], tuple(ids), torch.tensor(ids), np.array(ids)):
        assert [out.token_ids for out in plain_llm.generate(prompts, params())] == [tokens]
    mixed = plain_llm.generate([TEXT, ids, "x"], params())
    assert [out.token_ids for out in mixed[:2]] == [tokens, tokens]
    assert mixed[0].prompt_token_ids == mixed[1].prompt_token_ids == ids
    assert plain_llm.generate([], params()) == []


def test_prompts_of_numpy_integers(plain_llm: dp.LLM) -> None:
    ids = [5, 6, 7]
    want = plain_llm.generate(ids, params())[0].token_ids
    assert plain_llm.generate(list(np.array(ids)), params())[0].token_ids == want
    assert plain_llm.generate(np.array([ids, ids]), params())[1].token_ids == want


def test_answers_in_prompt_order_with_params_each(drafted_llm: dp.LLM, plain_llm: dp.LLM) -> None:
    prompts = [[5 + i] * (i + 1) for i in range(9)]
    each = [params(seed=i, max_tokens=30 - 3 * i) for i in range(9)]
    outs = drafted_llm.generate(prompts, each)
    for prompt, one, out in zip(prompts, each, outs, strict=True):
        assert out.prompt_token_ids == prompt
        assert out.token_ids == plain_llm.generate(prompt, one)[0].token_ids


def test_n_completions_are_flat_indexed_and_reproducible(drafted_llm: dp.LLM) -> None:
    outs = drafted_llm.generate([TEXT, "x"], params(n=3))
    assert [out.index for out in outs] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(out.token_ids) for out in outs}) == 6
    again = drafted_llm.generate([TEXT, "x"], params(n=3))
    assert [out.token_ids for out in again] == [out.token_ids for out in outs]
    assert outs[0].token_ids == drafted_llm.generate(TEXT, params())[0].token_ids
    assert outs[0].seed == 3
    for out in outs:  # the reported seed alone brings it back
        alone = drafted_llm.generate(out.prompt_token_ids, params(seed=out.seed))
        assert alone[0].token_ids == out.token_ids


def test_without_a_seed_one_is_drawn_and_reported(plain_llm: dp.LLM) -> None:
    outs = plain_llm.generate(["x"] * 4, params(seed=None, n=2))
    assert len({out.seed for out in outs}) == 8
    assert len({tuple(out.token_ids) for out in outs}) == 8
    for out in outs:
        again = plain_llm.generate("x", params(seed=out.seed))[0]
        assert again.token_ids == out.token_ids and again.seed == out.seed


def test_the_global_generators_are_not_touched(drafted_llm: dp.LLM) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = drafted_llm.generate("x", params())[0].token_ids
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert drafted_llm.generate("x", params())[0].token_ids == first


def test_default_parameters_are_greedy(plain_llm: dp.LLM) -> None:
    a, b = plain_llm.generate(["x", "x"])
    assert a.token_ids == b.token_ids and len(a.token_ids) <= 256
    assert a.finish_reason in ("stop", "length")


# --- chat ---


def test_chat(plain_llm: dp.LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    prompt = "[user]hi\n[assistant]"
    want = plain_llm.generate(prompt, params())[0]
    (out,) = plain_llm.chat(conversation, params())
    assert out.prompt_token_ids == tokenizer()(prompt)["input_ids"]
    assert out.token_ids == want.token_ids and out.text == want.text
    two = plain_llm.chat([conversation, conversation], params())
    assert [each.token_ids for each in two] == [want.token_ids] * 2
    refused(lambda: plain_llm.chat([], params()))


# --- logprobs ---


@pytest.mark.parametrize("top", [0, 1, 4])
def test_logprobs_are_the_models_own(drafted_llm: dp.LLM, top: int) -> None:
    one = params(logprobs=top, repetition_penalty=1.3, temperature=0.8, top_k=9)
    (out,) = drafted_llm.generate(TEXT, one)
    ids = torch.tensor([[*out.prompt_token_ids, *out.token_ids]])
    with torch.no_grad():
        rows = model()(ids).logits[0, len(out.prompt_token_ids) - 1 : -1].log_softmax(-1)
    assert out.logprobs is not None and len(out.logprobs) == len(out.token_ids)
    for row, token, reported in zip(rows, out.token_ids, out.logprobs, strict=True):
        assert token in reported
        best = row.topk(top).indices.tolist()
        assert set(reported) == {*best, token}
        for i, x in reported.items():
            assert abs(x - row[i].item()) < 1e-4
    assert drafted_llm.generate("x", params())[0].logprobs is None


def test_logprobs_are_the_same_with_drafts_and_end_with_the_output(
    drafted_llm: dp.LLM, plain_llm: dp.LLM
) -> None:
    one = params(logprobs=2, logit_bias={2: 9.0}, seed=1, stop="e")
    a, b = drafted_llm.generate(TEXT, one)[0], plain_llm.generate(TEXT, one)[0]
    assert a.token_ids == b.token_ids and len(a.logprobs) == len(a.token_ids)
    for x, y in zip(a.logprobs, b.logprobs, strict=True):
        assert x.keys() == y.keys()
        assert all(abs(x[i] - y[i]) < 1e-4 for i in x)


def test_a_proposer_needs_only_taps_and_propose(plain_llm: dp.LLM) -> None:
    class Bare:
        taps: tuple[int, ...] = ()

        def propose(self, requests: Any) -> Any:
            return [TokenTree.chain([r.tokens[-1], 5, 6]) for r in requests]

    with llm(speculate=Bare()) as made:
        got = made.generate("x", params())[0].token_ids
    assert got == plain_llm.generate("x", params())[0].token_ids
