"""`generate(custom_generate=...)` on encoder-decoders: the tokens that transformers would write."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateEncoderDecoderOutput

import draftproof as dp
from encoders import FAMILIES, REFUSED, V, model, prompts
from marking import all_but_some_slow

NEW = 12
THREE = [prompts(1, seed)[0] for seed in (0, 2, 1)]  # of 9, 3 and 6 tokens


def inputs(batch: int = 1, side: str = "right") -> dict[str, Tensor]:
    """Prompts of different lengths; what pads them is a token like any other."""
    rows, width = THREE[:batch], max(map(len, THREE[:batch]))
    fill = [[5] * (width - len(row)) for row in rows]
    ids = [row + pad if side == "right" else pad + row for row, pad in zip(rows, fill, strict=True)]
    ones, zeros = [[1] * len(row) for row in rows], [[0] * len(pad) for pad in fill]
    pairs = zip(ones, zeros, strict=True)
    mask = [one + zero if side == "right" else zero + one for one, zero in pairs]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def theirs(made: PreTrainedModel, batch: int = 1, side: str = "right", **options: Any) -> Any:
    defaults: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    return made.generate(**{**inputs(batch, side), **defaults, **options})


def ours(made: PreTrainedModel, speculate: Any, *given: Any, **options: Any) -> Any:
    loop = dp.custom_generate(speculate, seed=options.pop("seed", None))
    return theirs(made, *given, custom_generate=loop, **options)


def same(got: Tensor, want: Tensor) -> None:
    assert got.tolist() == want.tolist()
    assert got.dtype == want.dtype and got.device == want.device


def accepted(made: PreTrainedModel, loop: Any, *given: Any, **options: Any) -> tuple[Tensor, int]:
    out = theirs(made, *given, custom_generate=loop, **options)
    return out, sum(stats.accepted for stats in loop.stats)


SOME = ("T5", "LongT5", "BART", "Marian", "T5Gemma", "Switch")


@pytest.mark.parametrize("family", all_but_some_slow(FAMILIES, *SOME))
def test_greedy_output_is_that_of_transformers(family: str) -> None:
    """One row, and three of which the first ends early; padded on either side."""
    made = model(family)
    alone, three = theirs(made), theirs(made, 3)
    assert len({tuple(row) for row in three.tolist()}) > 1, "the encoder makes no difference"
    end = {"eos_token_id": int(three[0, 4]), "pad_token_id": 3}
    ended = theirs(made, 3, **end)
    assert alone[0, 0] == made.generation_config.decoder_start_token_id
    plain = dp.custom_generate(None)
    same(accepted(made, plain)[0], alone)
    for speculate in (dp.NGram(min_ngram=1), dp.DraftModel(made)):
        loop = dp.custom_generate(speculate)
        got, one = accepted(made, loop)
        same(got, alone)
        got, many = accepted(made, loop, 3, **end)
        same(got, ended)
    assert one and many, "nothing accepted, nothing tested"
    same(accepted(made, plain, 3, "left")[0], theirs(made, 3, "left"))


def test_what_is_masked_is_not_read() -> None:
    """A hole in the middle too; and with no mask every token is read."""
    made, given = model("BART"), inputs(3)
    whole = ours(made, "ngram", 3, attention_mask=None)
    same(whole, theirs(made, 3, attention_mask=None))
    mask = given["attention_mask"].clone()
    mask[:, 1] = 0
    same(ours(made, "ngram", 3, attention_mask=mask), theirs(made, 3, attention_mask=mask))
    assert not torch.equal(whole, theirs(made, 3)), "the padding makes no difference"


@pytest.mark.parametrize("family", ["T5", "BART", "M2M100"])
def test_what_the_decoder_starts_from(family: str) -> None:
    """With or without the start token; another start token is the caller's as well."""
    made = model(family)
    start = int(made.generation_config.decoder_start_token_id)
    for given in ([[start, 8, 9], [start, 7, 11], [start, 9, 8]], [[8, 9], [7, 11], [9, 8]]):
        options: dict[str, Any] = {"decoder_input_ids": torch.tensor(given)}
        want = theirs(made, 3, **options)
        same(ours(made, "ngram", 3, **options), want)
        options["decoder_attention_mask"] = torch.ones(3, len(given[0]), dtype=torch.long)
        same(ours(made, "ngram", 3, **options), want)
    other = {"decoder_start_token_id": 13}
    want = theirs(made, 3, **other)
    assert want[0, 0] == 13
    same(ours(made, "ngram", 3, **other), want)


PROCESSED: dict[str, dict[str, Any]] = {
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": 9, "eos_token_id": 9},
    "ngrams": {"no_repeat_ngram_size": 2},
    "ngrams of the input": {"encoder_no_repeat_ngram_size": 1},
    "repetition": {"repetition_penalty": 1.8},
    "of the input": {"encoder_repetition_penalty": 3.0},
    "suppress": {"suppress_tokens": [*range(3, 30)], "begin_suppress_tokens": [*range(30, 50)]},
    "min": {"min_new_tokens": 5, "eos_token_id": [*range(2, 40)]},
}


@pytest.mark.parametrize("kind", PROCESSED)
def test_processors_do_what_they_do_in_transformers(kind: str) -> None:
    made, options = model("T5"), PROCESSED[kind]
    want = theirs(made, 3, **options)
    assert want.tolist() != theirs(made, 3, eos_token_id=options.get("eos_token_id")).tolist()
    for speculate in (None, dp.NGram(min_ngram=1), dp.DraftModel(made)):
        same(ours(made, speculate, 3, **options), want)


def test_the_rules_are_those_of_the_call_alone() -> None:
    """What the model's own config rules reaches the tokens once, through transformers."""
    made = copy.copy(model("T5"))
    made.generation_config = copy.deepcopy(made.generation_config)
    made.generation_config.suppress_tokens = [*range(3, 30)]
    want = theirs(made, 3, suppress_tokens=[])
    assert want.tolist() != theirs(made, 3).tolist()
    same(ours(made, "ngram", 3, suppress_tokens=[]), want)
    same(ours(made, "ngram", 3), theirs(made, 3))


@pytest.mark.parametrize("batch", [1, 3])
def test_scores_logits_and_the_kind_of_result(batch: int) -> None:
    made = model("BART")
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options |= {"repetition_penalty": 1.3}
    want, got = theirs(made, batch, **options), ours(made, "ngram", batch, **options)
    assert isinstance(got, GenerateEncoderDecoderOutput) and type(got) is type(want)
    same(got.sequences, want.sequences)
    for name in ("scores", "logits"):
        ours_, theirs_ = torch.stack(got[name]), torch.stack(want[name])
        assert torch.allclose(ours_, theirs_.float(), atol=1e-5)


def test_a_streamer_is_given_what_transformers_gives_it() -> None:
    made, streamer, theirs_ = model("T5"), Mock(), Mock()
    out = ours(made, dp.DraftModel(made), streamer=streamer)
    theirs(made, streamer=theirs_)

    def put(mock: Mock) -> list[int]:
        return [token for each in mock.put.call_args_list for token in each.args[0].flatten()]

    assert put(streamer) == put(theirs_) == out[0].tolist()
    assert streamer.mock_calls[-1] == call.end()
    with pytest.raises(ValueError, match="streamer follows one"):
        ours(made, None, 3, streamer=Mock())


def test_several_sequences_of_an_input_share_what_the_encoder_made() -> None:
    """Drafts change none of them, the encoder runs once, and so do its keys and values."""
    made, ran, crossed = model("T5"), [], []
    encoder: Any = made.get_encoder()
    handle = encoder.register_forward_hook(lambda module, args, out: ran.append(len(out[0])))
    try:
        options = {"do_sample": True, "num_return_sequences": 3, "seed": 4, "temperature": 1.5}
        want = ours(made, None, 3, **options)
        assert want.shape[0] == 9 and len({tuple(row) for row in want.tolist()}) > 6
        same(ours(made, dp.NGram(min_ngram=1), 3, **options), want)
        loop = dp.custom_generate("ngram")
        theirs(made, custom_generate=loop)  # the load probe reads as well
        ran.clear()
        runner: Any = loop._llm and loop._llm.runner
        inner = runner._crossed
        runner._crossed = lambda batch: crossed.append(len(batch)) or inner(batch)
        theirs(made, 3, custom_generate=loop, do_sample=True, num_return_sequences=3)
        assert ran == [3] and sum(crossed) == 3
        assert not runner._across and not runner._inputs
    finally:
        handle.remove()


def test_encoder_outputs_of_the_caller_are_taken() -> None:
    made, given = model("BART"), inputs(3)
    with torch.no_grad():
        encoder: Any = made.get_encoder()
        states = encoder(**given)
        states.last_hidden_state += 0.3  # not what it would make of the tokens
    want = theirs(made, 3, encoder_outputs=states)
    assert want.tolist() != theirs(made, 3).tolist()
    same(ours(made, "ngram", 3, encoder_outputs=states), want)
    same(ours(made, dp.DraftModel(model("BART", 1, 1)), 3, encoder_outputs=states), want)


def refused() -> dict[str, dict[str, Any]]:
    made, given = model("BART"), inputs(3)
    with torch.no_grad():
        encoder: Any = made.get_encoder()
        states = encoder(**given)
    nothing = given["attention_mask"].clone()
    nothing[1] = 0
    left = torch.tensor([[1, 1], [0, 1], [1, 1]])
    return {
        "num_beams": {"num_beams": 2},
        "all of input 1": {"attention_mask": nothing},
        "pass input_ids": {"input_ids": None, "encoder_outputs": states},
        "belong together": {"input_ids": torch.tensor([[5]] * 3), "encoder_outputs": states},
        "inputs_embeds": {"input_ids": None, "inputs_embeds": torch.zeros(3, 9, 32).double()},
        "decoder_attention_mask": {
            "decoder_input_ids": torch.tensor([[2, 8]] * 3),
            "decoder_attention_mask": left,
        },
        "assistant_model": {"assistant_model": model("BART", 1, 1)},
        "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
        "at most 95": {"decoder_input_ids": torch.tensor([[2] * 96] * 3), "max_length": 97},
    }


@pytest.mark.parametrize("word", refused())
def test_what_cannot_be_honoured_is_refused_by_name(word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        ours(model("BART"), "ngram", 3, **{"max_new_tokens": 3, **refused()[word]})
    assert "\n" not in str(caught.value)


def test_a_model_that_cannot_run_packed_is_refused() -> None:
    make, why = REFUSED["NLLB-MoE at random"]
    made = make().double().eval()
    with pytest.raises(ValueError, match=why):
        made.generate(
            torch.tensor([[3, V - 1]]), max_new_tokens=3, custom_generate=dp.custom_generate()
        )
