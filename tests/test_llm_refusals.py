"""The facade: bad input is a ValueError of one sentence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import draftproof as dp
import tiny
from facade import TEXT, llm, params, refused
from spelling import model, tokenizer


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["empty"]),
        ([[]], ["empty"]),
        ([[5], ""], ["empty"]),
        ([-1], ["-1"]),
        ([5, 259], ["259"]),
        ([[5, 10**12]], [str(10**12)]),
    ],
)
def test_bad_prompts(plain_llm: dp.LLM, prompt: Any, words: list[str]) -> None:
    refused(lambda: plain_llm.generate(prompt, params()), *words)


@pytest.mark.parametrize(
    "prompt", [5, None, [None], [1.5], [[1.5, 2]], [["a"]], {"text": "x"}, [["a", 5]], [5, "x"]]
)
def test_prompts_of_the_wrong_kind(plain_llm: dp.LLM, prompt: Any) -> None:
    refused(lambda: plain_llm.generate(prompt, params()))


@pytest.mark.parametrize("given", [{"temperature": 0}, 5, "x", [], [params(), params()]])
def test_params_of_the_wrong_kind(plain_llm: dp.LLM, given: Any) -> None:
    for call in (plain_llm.generate, plain_llm.stream, plain_llm.submit):
        refused(lambda call=call: call(TEXT, given), "ampling")


@pytest.mark.parametrize("prompt", ["a\ud800", ["a", "\udc00"]])
def test_half_a_character(plain_llm: dp.LLM, prompt: Any) -> None:
    refused(lambda: plain_llm.generate(prompt, params()), "half a character")
    refused(lambda: plain_llm.intake.predicted("\ud800"), "prediction", "half a character")


@pytest.mark.parametrize(
    "inputs",
    [
        {"input_ids": 5},
        {"input_ids": [[5, 6]], "attention_mask": [1, 1]},
        {"input_ids": [5, 6], "attention_mask": [[1, 1]]},
        {"input_ids": [[5, 6]], "attention_mask": [[1]]},
        {"input_ids": [[5, 6]], "attention_mask": 1},
        np.array(5),
        torch.tensor(5),
    ],
)
def test_what_no_tokenizer_returns(plain_llm: dp.LLM, inputs: Any) -> None:
    refused(lambda: plain_llm.generate(inputs, params()))


@pytest.mark.parametrize("given", [5, 5.5, np.array(5), object()])
def test_numbers_where_lists_belong(plain_llm: dp.LLM, given: Any) -> None:
    refused(lambda: plain_llm.generate("a", params(), decoder_prompt=given), "decoder_prompt")
    for name in ("bad_token_ids", "stop_token_ids", "resume", "prediction"):
        refused(partial(params, **{name: given}), name)


def test_bad_ids_in_parameters(plain_llm: dp.LLM) -> None:
    refused(lambda: plain_llm.generate("x", params(logit_bias={259: 1.0})), "logit_bias", "259")
    refused(lambda: plain_llm.generate("x", params(bad_token_ids=(300,))), "bad_token_ids", "300")
    refused(lambda: plain_llm.generate("x", params(stop_token_ids=(300,))), "stop_token_ids", "300")


def test_params_of_the_wrong_number_or_kind(plain_llm: dp.LLM) -> None:
    refused(lambda: plain_llm.generate(["a", "b", "c"], [params()] * 2), "2", "3")
    refused(lambda: plain_llm.generate(["a"], {"temperature": 1.0}))
    refused(lambda: plain_llm.generate(["a"], 0.7))
    refused(lambda: plain_llm.generate(["a", "b"], [params(), None]))


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "greedy"},
        {"rule": 0.5},
        {"rule": None},
        {"rule": dp.Typical},
        {"runner": "native?"},
        {"max_batch": 0},
        {"threads": 0},
        {"speculate": "eagle"},
        {"speculate": "draft"},
        {"speculate": 5.5},
        {"speculate": ["ngram", "eagle"]},
        {"dtype": "float12"},
        {"dtype": torch.int64},
        {"device": "abacus"},
        {"device": "mps"},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    word = next(iter(options.values()))
    named = isinstance(word, str | int | torch.dtype)
    refused(lambda: llm(**options), *([str(word).removeprefix("torch.")] if named else []))


def test_a_loaded_model_is_not_converted_behind_the_users_back() -> None:
    refused(lambda: llm(dtype=torch.float64), "float32")
    assert model().dtype == torch.float32
    with llm(dtype="float32") as made:
        assert made.runner.dtype == torch.float32


def test_unknown_models(tmp_path: Path) -> None:
    refused(lambda: dp.LLM(str(tmp_path / "nothing"), speculate=None), "nothing")
    refused(lambda: dp.LLM(str(tmp_path), speculate=None), tmp_path.name)
    model().config.save_pretrained(tmp_path)
    refused(
        lambda: dp.LLM(str(tmp_path), speculate=None), tmp_path.name
    )  # a folder without weights
    refused(lambda: dp.LLM("nobody/has-this-model", speculate=None), "nobody/has-this-model")
    refused(lambda: dp.LLM(torch.nn.Linear(2, 2), speculate=None), "Linear")
    refused(lambda: dp.LLM(None, speculate=None))
    refused(lambda: dp.LLM(3, speculate=None))


def test_a_broken_checkpoint(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"this is no checkpoint")
    refused(lambda: dp.LLM(tmp_path, speculate=None), tmp_path.name)


def test_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    model().config.__class__(
        **{**tiny.COMMON, "hidden_size": 32, "vocab_size": 259}
    ).save_pretrained(tmp_path)
    refused(lambda: dp.LLM(tmp_path, speculate=None), tmp_path.name)


def test_a_checkpoint_with_weights_missing(tmp_path: Path) -> None:
    """Layers at random are no model: transformers would only print a table."""
    model().save_pretrained(tmp_path)
    config = model().config.__class__(**{**tiny.COMMON, "vocab_size": len(tokenizer())})
    config.num_hidden_layers = 5
    config.save_pretrained(tmp_path)
    refused(lambda: dp.LLM(tmp_path, speculate=None))


def test_a_folder_of_weights_and_tokenizer(tmp_path: Path, plain_llm: dp.LLM) -> None:
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for name in (tmp_path, str(tmp_path)):
        with dp.LLM(name, speculate=dp.DraftModel(str(tmp_path), 4)) as made:
            assert made.runner.dtype == torch.float32
            out = made.generate(TEXT, params())[0]
    want = plain_llm.generate(TEXT, params())[0]
    assert out.token_ids == want.token_ids and out.text == want.text
    with dp.LLM(tmp_path, dtype="float64", speculate=None) as made:
        assert made.runner.dtype == torch.float64
    with dp.LLM(tmp_path, dtype=torch.bfloat16, speculate=None) as made:
        assert made.runner.dtype == torch.bfloat16
        assert len(made.generate(TEXT, params(ignore_eos=True))[0].token_ids) == 30


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    with dp.LLM(tmp_path, speculate=None) as made:
        assert len(made.generate([5, 6], params(ignore_eos=True))[0].token_ids) == 30
        refused(lambda: made.generate("x"), "tokenizer")


@pytest.mark.parametrize(
    "name, text", [("tokenizer.json", "{"), ("tokenizer_config.json", '{"tokenizer_class": 5}')]
)
def test_a_tokenizer_that_cannot_be_read(tmp_path: Path, name: str, text: str) -> None:
    """It is no model that came without one."""
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text(text)
    refused(lambda: dp.LLM(tmp_path, speculate=None), "cannot load the tokenizer", str(tmp_path))


def test_all_tokens_banned_ends_one_request_with_an_error(drafted_llm: dp.LLM) -> None:
    outs = drafted_llm.generate(
        ["x", "y"], [params(bad_token_ids=tuple(range(259))), params(ignore_eos=True)]
    )
    assert outs[0].finish_reason == "error" and outs[0].error and outs[0].token_ids == []
    assert outs[1].finish_reason == "length" and len(outs[1].token_ids) == 30


@pytest.mark.parametrize(
    "bad",
    [
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e39},
        {"top_k": -2},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 5},
        {"n": 0},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": 2**64},
        {"logprobs": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"stop": [""]},
        {"stop": ""},
        {"stop": [5]},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: float("nan")}},
        {"bad_token_ids": (-1,)},
        {"stop_token_ids": (-1,)},
        {"temperature": "hot"},
        {"max_tokens": 2.5},
        {"n": True},
    ],
)
def test_parameters_out_of_range(bad: dict[str, Any]) -> None:
    refused(lambda: dp.SamplingParams(**bad))


@pytest.mark.parametrize(
    "bad", [{"epsilon": "0.1"}, {"epsilon": 0}, {"delta": None}, {"delta": -1}]
)
def test_thresholds_that_are_none(bad: dict[str, Any]) -> None:
    refused(lambda: dp.Typical(**bad), *bad)
