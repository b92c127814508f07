"""What an encoder-decoder's generation config rules, held on every node's own path; bad input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel

import draftproof as dp
import hearing
import tiny
from encoder_folders import tokenizer
from encoders import BART, V, decoder_alone, model, own, prompts

NEW = 14
START = 0
RULES: dict[str, dict[str, Any]] = {
    "forced_bos": {"forced_bos_token_id": 7},
    "forced_eos": {"forced_eos_token_id": 2},
    "suppress": {"suppress_tokens": [*range(3, 30)]},
    "begin_suppress": {"begin_suppress_tokens": [*range(3, 40)], "forced_bos_token_id": 7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram": {"encoder_no_repeat_ngram_size": 1},
    "bad_words": {},
    "min_length": {"min_length": 9, "eos_token_id": [*range(2, 40)]},
    "min_new_tokens": {"min_new_tokens": 5, "eos_token_id": [*range(2, 40)]},
}


def ruled(made: PreTrainedModel, **rules: Any) -> PreTrainedModel:
    """A model with the same weights, whose generation config asks for more."""
    made = copy.copy(made)
    made.generation_config = GenerationConfig(
        decoder_start_token_id=START, pad_token_id=1, **{"eos_token_id": 2, **rules}
    )
    return made


@pytest.mark.parametrize("rule", RULES)
def test_rules_hold_on_every_path(rule: str) -> None:
    """As transformers applies them, whatever drafts; each of them changes the text."""
    bare, given = ruled(model("T5")), [*prompts(3), [*range(3, 45)]]
    asked = RULES[rule]
    if rule == "bad_words":
        text = own(bare, given[0], NEW)
        asked = {"bad_words_ids": [text[2:3], text[5:7]]}
    made = ruled(model("T5"), **asked)
    want = [own(made, prompt, NEW) for prompt in given]
    if rule != "forced_eos":
        assert want != [own(bare, prompt, NEW) for prompt in given], "nothing is ruled"
    for speculate in (None, dp.NGram(min_ngram=1), dp.DraftModel(model("T5")), "lookahead"):
        done = dp.LLM(made, speculate=speculate).generate(given, dp.SamplingParams(max_tokens=NEW))
        assert [(one.token_ids, one.error) for one in done] == [(ids, None) for ids in want]


def test_a_config_that_asks_for_what_is_not_followed_is_refused() -> None:
    with pytest.raises(ValueError, match="exponential_decay_length_penalty.*not followed"):
        dp.LLM(ruled(model("BART"), exponential_decay_length_penalty=(3, 1.5)))


def test_beams_and_penalties_of_a_config_are_told() -> None:
    made = ruled(model("BART"), num_beams=4, repetition_penalty=1.5)
    (one,) = dp.LLM(made).generate([5, 6, 7], dp.SamplingParams(max_tokens=4))
    assert any("4 beams" in said for said in one.warnings)
    assert any("repetition_penalty=1.5" in said for said in one.warnings)
    llm = dp.LLM(made)
    (one,) = llm.generate([5, 6, 7], dp.SamplingParams.from_model(llm, max_tokens=NEW))
    assert one.token_ids == own(made, [5, 6, 7], NEW)
    assert not any("repetition" in said for said in one.warnings)


def test_what_the_decoder_starts_from() -> None:
    made, (a, b) = ruled(model("BART")), prompts(2)
    llm, params = dp.LLM(made, speculate="ngram"), dp.SamplingParams(max_tokens=NEW)

    def texts(start: Any) -> list[list[int]]:
        return [one.token_ids for one in llm.generate([a, b], params, decoder_prompt=start)]

    given = {"decoder_input_ids": torch.tensor([[START, 8, 9]])}
    want = [own(made, prompt, NEW, **given) for prompt in (a, b)]
    assert texts([8, 9]) == texts([START, 8, 9]) == want
    assert texts([[8, 9], None]) == [want[0], own(made, b, NEW)]
    (one, _) = llm.generate([a, b], params, decoder_prompt=[8, 9])
    assert one.prompt_token_ids == [START, 8, 9]
    chunks = list(llm.stream(a, params, decoder_prompt=[8, 9]))
    assert [token for chunk in chunks for token in chunk.token_ids] == want[0]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ([3] * 97, {}, "97 tokens and the encoder reads at most 96"),
    ([], {}, "empty"),
    ([3, V], {}, "vocabulary ends at 60"),
    ("text", {}, "tokenizer"),
    ([3], {"decoder_prompt": [4] * 96}, "starts from 97 tokens and at most 95"),
    ([3], {"decoder_prompt": [V]}, "decoder_prompt holds token id 61"),
    ([3], {"decoder_prompt": "text"}, "decoder_prompt as ids"),
    ([3], {"decoder_prompt": [[4], [5]]}, "2 decoder prompts for 1"),
    ([3], {"decoder_prompt": [[4.5]]}, "decoder_prompt is text or a list of integer"),
]


@pytest.mark.parametrize(("prompt", "more", "words"), REFUSED)
def test_bad_input(prompt: Any, more: dict[str, Any], words: str) -> None:
    llm = dp.LLM(model("BART"), speculate=None)
    with pytest.raises(ValueError, match=words) as caught:
        llm.generate([prompt], **more)
    assert "\n" not in str(caught.value)


def test_models_that_do_not_go_together() -> None:
    made, decoder = model("BART"), tiny.model("llama").double()
    larger = transformers.BartForConditionalGeneration(
        transformers.BartConfig(**{**BART, "vocab_size": 2000, "encoder_layers": 1})
    ).double()
    for target, speculate, words in [
        (made, dp.DraftModel(larger), "reads 2000 ids and the target's 61"),
        (made, dp.DraftModel(hearing.model("Whisper")), "what the draft reads"),
        (
            hearing.model("Whisper"),
            dp.DraftModel(hearing.model("Moonshine")),
            "what the draft reads is input_values",
        ),
        (decoder, dp.DraftModel(made), "a decoder alone and the draft an encoder-decoder"),
        (made, dp.DraftModel(model("BART", 1), quantize="int8"), "cannot be quantised"),
        (made, dp.EarlyExit(2), "layers=2 is no early exit of a model with 2 layers"),
    ]:
        with pytest.raises(ValueError, match=words) as caught:
            dp.LLM(target, speculate=speculate)
        assert "\n" not in str(caught.value)
    for options, words in [
        ({"prefix_cache": True}, "drop prefix_cache"),
        ({"runner": "native"}, "takes no encoder-decoders"),
        ({"dtype": "int8"}, "takes no encoder-decoders"),
        ({"dtype": "float32"}, "convert it yourself"),
    ]:
        with pytest.raises(ValueError, match=words):
            dp.LLM(made, **options)
    with pytest.raises(ValueError, match="decoder_prompt is for encoder-decoders"):
        dp.LLM(decoder).generate([3], decoder_prompt=[4])


def test_a_decoder_alone_drafts_from_what_was_written() -> None:
    """Of a like vocabulary; what the target's encoder reads it does not see."""
    made, given = model("BART"), prompts(4)
    decoder = decoder_alone().double().eval()
    plain = dp.LLM(made, speculate=None)
    llm = dp.LLM(plain, speculate=dp.DraftModel(decoder, 3, min_confidence=0.0))
    for options in ({}, {"temperature": 0.8, "seed": 3}):
        params = dp.SamplingParams(max_tokens=NEW, **options)
        want, got = plain.generate(given, params), llm.generate(given, params)
        assert [one.token_ids for one in got] == [one.token_ids for one in want]
        assert all(one.stats.drafted for one in got) and not any(one.warnings for one in got)
    llm.engine.check()


def test_a_draft_that_can_read_less_drafts_nothing_and_says_so() -> None:
    with torch.random.fork_rng():
        shorter = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                **{**BART, "max_position_embeddings": 16},
                encoder_layers=1,
                decoder_layers=1,
            )
        ).double()
    made, long = model("BART"), [5 + i % 40 for i in range(40)]
    llm = dp.LLM(made, speculate=dp.DraftModel(shorter))
    (one, other) = llm.generate([long, [5, 6, 7]], dp.SamplingParams(max_tokens=8))
    assert one.token_ids == own(made, long, 8) and other.token_ids == own(made, [5, 6, 7], 8)
    assert any("reads at most 16" in said for said in one.warnings)
    assert other.stats.drafted and not other.warnings


def test_by_path_and_in_a_shell(run: Any, tmp_path: Path) -> None:
    made = copy.deepcopy(model("T5")).float()
    made.generation_config.eos_token_id = 2
    made.save_pretrained(tmp_path)
    llm = dp.LLM(str(tmp_path))
    (one,) = llm.generate([5, 6, 7], dp.SamplingParams(max_tokens=NEW))
    assert one.token_ids == own(made, [5, 6, 7], NEW)
    code, _, err = run("generate", str(tmp_path), "p")
    assert code == 2 and "without a tokenizer" in err and err.count("\n") == 1
    tokenizer(tmp_path)
    code, out, err = run("generate", str(tmp_path), "c b d c b", "--max-tokens", "9")
    assert code == 0 and out.strip()
    code, _, err = run("generate", str(tmp_path), "c b d c b", "--max-tokens", "2", "--stats")
    assert code == 0 and "6 prompt tokens" in err  # five that the encoder reads, and the start
    code, more, _ = run(
        "generate", str(tmp_path), "c b d c b", "--max-tokens", "9", "--decoder-prompt", "b"
    )
    assert code == 0 and more != out
    for command in ("chat", "convert"):
        code, _, err = run(command, str(tmp_path))
        assert code == 2 and "encoder-decoder" in err and "Traceback" not in err, (command, err)
