"""A model's own generation config as sampling parameters, and what of it is not followed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import draftproof as dp
from draftproof import generation
from draftproof.sampling.defaults import OF_ENCODERS
from spelling import model, tokenizer


class Configured:
    """What `from_model` looks at: a model with a generation config."""

    def __init__(self, **config: Any) -> None:
        self.generation_config = GenerationConfig(**config)


def test_an_empty_config_changes_nothing() -> None:
    assert dp.SamplingParams.from_model(Configured()) == dp.SamplingParams()
    assert dp.SamplingParams.ignored_of_model(Configured()) == {}
    assert dp.SamplingParams.from_model(torch.nn.Module()) == dp.SamplingParams()  # wrapped


def test_a_config_that_samples() -> None:
    config = Configured(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.1
    )
    want = dp.SamplingParams(
        temperature=0.6, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.1, seed=3
    )
    assert dp.SamplingParams.from_model(config, seed=3) == want
    assert dp.SamplingParams.ignored_of_model(config) == {}
    assert dp.SamplingParams.from_model(Configured(do_sample=True)).temperature == 1.0


@pytest.mark.parametrize("sampled", [False, None])
def test_a_config_that_does_not_sample_is_greedy(sampled: bool | None) -> None:
    config = Configured(do_sample=sampled, temperature=0.6, top_p=0.9, repetition_penalty=1.1)
    want = dp.SamplingParams(temperature=0.0, repetition_penalty=1.1)
    assert dp.SamplingParams.from_model(config) == want
    assert dp.SamplingParams.ignored_of_model(config) == {"temperature": 0.6, "top_p": 0.9}


def test_what_bounds_and_ends_an_output() -> None:
    config = Configured(
        max_new_tokens=40, min_new_tokens=4, stop_strings=["###"], suppress_tokens=[7, 9]
    )
    want = dp.SamplingParams(max_tokens=40, min_tokens=4, stop="###", bad_token_ids=(7, 9))
    assert dp.SamplingParams.from_model(config) == want
    assert dp.SamplingParams.from_model(config, max_tokens=9).max_tokens == 9


def test_what_has_no_equal_here_is_named() -> None:
    config = Configured(do_sample=True, typical_p=0.9, no_repeat_ngram_size=3, num_beams=1)
    ignored = dp.SamplingParams.ignored_of_model(config)
    assert ignored == {"typical_p": 0.9, "no_repeat_ngram_size": 3}


@pytest.mark.parametrize("given", ["bundled", Path("folder"), None, 5, {"do_sample": True}])
def test_what_is_no_model_is_refused(given: Any) -> None:
    for call in (dp.SamplingParams.from_model, dp.SamplingParams.ignored_of_model):
        with pytest.raises(ValueError, match=f"no {type(given).__name__}: load it first"):
            call(given)


def test_of_a_config_itself() -> None:
    config = Configured(do_sample=True, top_p=0.9, typical_p=0.9).generation_config
    assert dp.SamplingParams.from_model(config) == dp.SamplingParams(temperature=1.0, top_p=0.9)
    assert dp.SamplingParams.ignored_of_model(config) == {"typical_p": 0.9}


def test_of_an_llm() -> None:
    with dp.LLM(model(), tokenizer=tokenizer(), speculate=None) as llm:
        assert dp.SamplingParams.from_model(llm) == dp.SamplingParams.from_model(model())


def test_what_an_encoder_decoder_follows_by_itself_is_neither_taken_nor_ignored() -> None:
    config = {"no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "min_length": 5}
    config |= {"suppress_tokens": [7], "min_new_tokens": 4, "num_beams": 4}
    made = Configured(**config)
    assert dp.SamplingParams.ignored_of_model(made) == {
        name: config[name]
        for name in ("no_repeat_ngram_size", "forced_bos_token_id", "min_length", "num_beams")
    }
    made.config = SimpleNamespace(is_encoder_decoder=True)  # type: ignore[attr-defined]
    assert dp.SamplingParams.ignored_of_model(made) == {"num_beams": 4}
    assert dp.SamplingParams.from_model(made) == dp.SamplingParams()
    assert {*OF_ENCODERS} == generation.RULES.keys() - {"return_timestamps"}
