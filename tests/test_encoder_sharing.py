"""Drafts that read with the target's encoder: it runs once, and its output is nobody's copy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import draftproof as dp
import encoders
import hearing
from draftproof import models
from draftproof.runners.encoder_decoder import EncoderDecoder

NEW = 14
OTHER = 5  # a seed


def distilled(layers: int = 1) -> Any:
    """Of the tiny Whisper: its encoder, its first decoder layers, its head."""
    whole = copy.deepcopy(hearing.model("Whisper"))
    decoder: Any = whole.get_decoder()
    decoder.layers = decoder.layers[:layers]
    whole.config.decoder_layers = layers
    return whole


def without_encoder(whole: Any) -> Any:
    """As distil-whisper's draft is loaded beside Whisper."""
    made = transformers.WhisperForCausalLM(copy.deepcopy(whole.config)).double().eval()
    decoder = made.get_decoder()
    decoder.load_state_dict(whole.get_decoder().state_dict())
    made.proj_out.load_state_dict(whole.proj_out.state_dict())
    return made


@contextmanager
def passes(*read: Any) -> Iterator[list[int]]:
    """Inputs of every pass of these encoders."""
    ran: list[int] = []
    handles = [
        each.register_forward_hook(lambda module, args, out: ran.append(len(out[0])))
        for each in {id(each): each for each in read}.values()
    ]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def drafts() -> dict[str, Callable[[], Any]]:
    return {
        "a decoder alone": lambda: dp.DraftModel(without_encoder(distilled())),
        "an equal encoder": lambda: dp.DraftModel(distilled()),
        "two of them": lambda: dp.SpecInfer([without_encoder(distilled(2)), distilled()], (2, 1)),
        "staged": lambda: dp.Staged(without_encoder(distilled(2)), dp.DraftModel(distilled())),
        "the target": lambda: dp.DraftModel(hearing.model("Whisper")),
    }


@pytest.mark.parametrize("name", drafts())
def test_whisper_and_what_was_distilled_from_it(name: str) -> None:
    """Plain output, in batches that come and go, and one pass of one encoder for each input."""
    target: Any = hearing.model("Whisper")
    heard = [{"input_features": one} for one in hearing.features("Whisper", 8)]
    plain = dp.LLM(target, speculate=None)
    for options in ({}, {"temperature": 0.8, "seed": 5}):
        params = dp.SamplingParams(max_tokens=NEW, **options)
        want = [one.token_ids for one in plain.generate(inputs=heard, params=params)]
        proposer = drafts()[name]()
        given = getattr(proposer, "models", None) or [proposer.model]
        mine = [m.get_encoder() for m in given if hasattr(m.model, "encoder")]
        llm = dp.LLM(plain, speculate=proposer, max_batch=3)
        with passes(target.get_encoder(), *mine) as ran:
            done = llm.generate(inputs=heard, params=params)
        assert [one.token_ids for one in done] == want
        assert sum(ran) == len(heard)
        assert sum(one.stats.accepted for one in done) > len(heard)
        llm.engine.check()
        runner: Any = llm.runner
        assert not runner.reader.holds(), "what was made of an input outlives its request"
        llm.close()


def test_what_the_draft_hears_makes_it_right() -> None:
    """The whole target without its encoder drafts all; deaf to the input it would not."""
    target = hearing.model("Whisper")
    llm = dp.LLM(target, speculate=dp.DraftModel(without_encoder(target), min_confidence=0.0))
    heard = [{"input_features": one} for one in hearing.features("Whisper", 3)]
    done = llm.generate(inputs=heard, params=dp.SamplingParams(max_tokens=NEW))
    assert sum(one.stats.steps for one in done) <= 4 * len(done), "five tokens and a bonus a pass"


@pytest.mark.parametrize("family", ["T5", "BART", "M2M100", "T5Gemma", "Switch"])
def test_an_equal_encoder_reads_once(family: str) -> None:
    target, equal = encoders.model(family), copy.deepcopy(encoders.model(family))
    different = encoders.model(family, 2, OTHER)
    prompts = encoders.prompts(4)
    params = dp.SamplingParams(max_tokens=NEW)
    for draft, times in ((equal, 1), (different, 2)):
        before = copy.deepcopy(draft.state_dict())
        llm = dp.LLM(target, speculate=dp.DraftModel(draft))
        with passes(target.get_encoder(), draft.get_encoder()) as ran:
            done = llm.generate(prompts, params)
        want = [encoders.own(target, prompt, NEW) for prompt in prompts]
        assert [one.token_ids for one in done] == want
        assert sum(ran) == times * len(prompts)
        for name, weight in draft.state_dict().items():  # but for the precision of routers
            assert torch.equal(weight, before[name].to(weight.dtype)), name
        assert draft.get_encoder() is not target.get_encoder()
        llm.engine.check()
        llm.close()


def test_an_encoder_that_differs_in_its_configuration_alone_is_another() -> None:
    target, other = encoders.model("BART"), copy.deepcopy(encoders.model("BART"))
    for layer in other.get_encoder().layers:
        layer.activation_fn = torch.nn.Tanh()
    draft: Any = models.beside(EncoderDecoder(target), other)
    assert draft.reader.model is other


def test_a_draft_by_name_gives_its_own_encoder_away(tmp_path: Path) -> None:
    """Whole or as a decoder alone; what is kept for it is counted."""
    target = hearing.model("Whisper")
    distilled().save_pretrained(tmp_path / "whole")
    without_encoder(distilled()).save_pretrained(tmp_path / "decoder")
    runner = EncoderDecoder(target)
    size = runner.held.input_bytes
    for folder in ("whole", "decoder"):
        draft: Any = models.beside(runner, str(tmp_path / folder))
        assert draft.model.get_encoder() is target.get_encoder()
        assert draft.layers == 1 and draft.ear.shape == (8, 40)
        assert runner.held.input_bytes == size + 32 * 8


def test_what_cannot_read_with_the_target_is_refused() -> None:
    draft = without_encoder(distilled())
    narrow = transformers.WhisperConfig(**{**draft.config.to_dict(), "d_model": 16})
    for target, given, words in (
        (draft, None, "goes by what an encoder made and has none itself: give the whole"),
        (encoders.model("BART"), draft, "the target is BartForConditionalGeneration: use a draft"),
        (hearing.model("Whisper"), copy.deepcopy(draft).float(), "torch.float64 on cpu: convert"),
        (
            hearing.model("Whisper"),
            transformers.WhisperForCausalLM(narrow).double(),
            "states of 16 numbers and the target's encoder makes 32",
        ),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            dp.LLM(target, speculate=None if given is None else dp.DraftModel(given))
        assert "\n" not in str(caught.value)
    for quantize in ("int8",):
        with pytest.raises(ValueError, match="cannot be quantised"):
            dp.LLM(hearing.model("Whisper"), speculate=dp.DraftModel(draft, quantize=quantize))
    dp.LLM(hearing.model("Whisper"), speculate=dp.DraftModel(draft, quantize="none")).close()
