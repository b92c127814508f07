"""Models that hear write what transformers writes, whatever drafts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

import draftproof as dp
from encoders import methods
from encoders import model as reader
from hearing import FAMILIES, features, model, name_of, own
from marking import all_but_some_slow

NEW = 14
METHODS = methods(model)
OFTEN_RIGHT = ("ngram", "suffix", "itself", "specinfer")


def tokens(llm: dp.LLM, inputs: Any, **options: Any) -> list[list[int]]:
    done = llm.generate(inputs=inputs, params=dp.SamplingParams(**{"max_tokens": NEW, **options}))
    assert [one.error for one in done] == [None] * len(done)
    return [one.token_ids for one in done]


@pytest.mark.parametrize("family", all_but_some_slow(FAMILIES, "Whisper"))
def test_identity(family: str) -> None:
    """Every method, alone, three ragged ones, eight that come and go; greedy is transformers'."""
    name = name_of(family)
    heard = features(family, 8)
    given = [{name: one} for one in heard]
    plain = dp.LLM(model(family), speculate=None)
    want = tokens(plain, given)
    assert want == [own(family, one, NEW) for one in heard]
    assert len({tuple(one) for one in want}) > 2, "the encoder makes no difference"
    sampled = {"temperature": 0.8, "seed": 5}
    drawn = tokens(plain, given, **sampled)
    for method, make in METHODS.items():
        accepted = 0
        llm = dp.LLM(plain, speculate=make(family), max_batch=5)
        for at, size in ((0, 1), (1, 3), (0, 8)):
            done = llm.generate(
                inputs=given[at : at + size], params=dp.SamplingParams(max_tokens=NEW)
            )
            assert [one.token_ids for one in done] == want[at : at + size], method
            accepted += sum(one.stats.accepted for one in done)
        assert tokens(llm, given, **sampled) == drawn, method
        assert accepted or method not in OFTEN_RIGHT, f"{method}: nothing accepted"
        llm.engine.check()
        llm.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_drop_in_writes_what_transformers_writes(family: str) -> None:
    """One input, and three in one batch."""
    made: Any = model(family)
    first, second, third = (features(family, 7)[n] for n in (1, 2, 5))  # of one length
    for batch in ([first], [first, second, third]):
        options = {name_of(family): torch.stack(batch), "max_new_tokens": 12, "do_sample": False}
        want = made.generate(**options)
        for speculate in (None, dp.NGram(min_ngram=1), dp.DraftModel(made)):
            fast = dp.custom_generate(speculate)
            got = made.generate(**options, custom_generate=fast)
            assert got.tolist() == want.tolist()
        assert sum(stats.accepted for stats in fast.stats) > 0


@pytest.mark.parametrize("family", ["Speech2Text", "Moonshine"])
def test_the_drop_in_hears_no_padding(family: str) -> None:
    """Inputs of three lengths in one batch, whose mask says how long each is."""
    made: Any = model(family)
    heard = sorted(features(family, 9), key=len)[::4]
    lengths = [len(one) for one in heard]
    assert len({*lengths}) == 3
    noise = torch.randn(3, max(lengths), *heard[0].shape[1:], dtype=heard[0].dtype)
    mask = torch.zeros(noise.shape[:2], dtype=torch.long)
    for row, one in enumerate(heard):
        noise[row, : len(one)], mask[row, : len(one)] = one, 1
    options = {name_of(family): noise, "attention_mask": mask}
    options |= {"max_new_tokens": 12, "do_sample": False}
    want = made.generate(**options)
    for speculate in (None, dp.NGram(min_ngram=1), dp.DraftModel(made)):
        got = made.generate(**options, custom_generate=dp.custom_generate(speculate))
        assert got.tolist() == want.tolist()


def test_the_drop_in_needs_what_was_heard() -> None:
    made: Any = model("Whisper")
    (one,) = features("Whisper", 1)
    states = made.get_encoder()(one[None])
    with pytest.raises(ValueError, match="encoder_outputs without input_features are not taken"):
        made.generate(encoder_outputs=states, custom_generate=dp.custom_generate("ngram"))


def timed(**rules: Any) -> Any:
    """Whisper with tokens from 40 on that are times."""
    made = copy.copy(model("Whisper"))
    made.generation_config = copy.deepcopy(made.generation_config)
    for name, value in {"no_timestamps_token_id": 39, **rules}.items():
        setattr(made.generation_config, name, value)
    return made


def test_timestamp_rules_hold_on_every_path() -> None:
    """As transformers applies them in its one call; no_timestamps in the prompt leaves them out."""
    made = timed(return_timestamps=True, max_initial_timestamp_index=5)
    heard = features("Whisper", 4)
    given = [{"input_features": one} for one in heard]
    want = []
    for one in heard:
        options = {"return_timestamps": True, "max_new_tokens": NEW, "do_sample": False}
        options |= {"force_unique_generate_call": True, "return_dict_in_generate": True}
        want.append(made.generate(one[None], **options).sequences[0, 1:].tolist())
    assert all(40 <= ids[0] <= 45 for ids in want)
    for speculate in (None, dp.NGram(min_ngram=1), dp.DraftModel(model("Whisper"))):
        llm = dp.LLM(made, speculate=speculate, max_batch=3)
        assert tokens(llm, given) == want
    off = llm.generate(inputs=given, decoder_prompt=[39], params=dp.SamplingParams(max_tokens=NEW))
    assert [one.prompt_token_ids for one in off] == [[3, 39]] * 4
    assert [one.token_ids for one in off] != want


def test_task_tokens_are_those_of_the_generation_config() -> None:
    names = {"lang_to_id": {"<|en|>": 30, "<|de|>": 31}}
    names |= {"task_to_id": {"transcribe": 33, "translate": 34}, "is_multilingual": True}
    made, (heard,) = timed(**names), features("Whisper", 1)
    given = {"input_features": heard}
    with pytest.raises(ValueError, match="no language is named"):
        dp.LLM(made, speculate=None).generate(inputs=given)
    made.generation_config.language, made.generation_config.task = "de", "translate"
    llm, params = dp.LLM(made, speculate="ngram"), dp.SamplingParams(max_tokens=NEW)
    (one,) = llm.generate(inputs=given, params=params)
    assert one.prompt_token_ids == [3, 31, 34, 39]
    (other,) = llm.generate(inputs=given, params=params, decoder_prompt=[8, 9, 3, 30])
    assert other.prompt_token_ids == [8, 9, 3, 30], "what was said before stands before the start"
    options = {"force_unique_generate_call": True, "return_dict_in_generate": True}
    out = made.generate(heard[None], max_new_tokens=NEW, do_sample=False, **options)
    assert out.sequences[0].tolist() == one.prompt_token_ids + one.token_ids


def test_a_wave_is_heard_by_the_extractor_that_lies_with_the_model(tmp_path: Path) -> None:
    """By path, as an array with its rate, in a mapping, or as features, in a stream as well."""
    made = model("Whisper")
    made.save_pretrained(tmp_path)
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=8, hop_length=400, chunk_length=1, n_fft=400, sampling_rate=16_000
    )
    extractor.save_pretrained(tmp_path)
    wave = numpy.sin(numpy.arange(5000) / 7.0)
    heard = extractor(wave, sampling_rate=16_000, return_tensors="pt")
    assert heard["input_features"].shape == (1, 8, 40)
    llm = dp.LLM(str(tmp_path), speculate="ngram", dtype="float64")
    params = dp.SamplingParams(max_tokens=NEW)
    want = own("Whisper", heard["input_features"][0].double(), NEW)
    rate = {"sampling_rate": 16_000}
    for inputs, more in (
        (wave, rate),
        ([torch.tensor(wave)], rate),
        (list(wave), rate),
        ({"array": wave, **rate}, {}),
        (heard, {}),
        (heard["input_features"], {}),
    ):
        (one,) = llm.generate(inputs=inputs, params=params, **more)
        assert one.token_ids == want
    chunks = [*llm.stream({"raw": wave, **rate}, params)]  # type: ignore[arg-type]
    assert [token for chunk in chunks for token in chunk.token_ids] == want
    for bad, more, words in (
        (wave, {}, "has no sampling_rate"),
        (wave, {"sampling_rate": 8000}, "has 8000 samples a second, and the model hears 16000"),
        (wave[:0], rate, "is empty"),
        ((wave * 32767).astype("int16"), rate, "whole numbers .torch.int16.: give numbers between"),
        (numpy.append(wave, numpy.nan), rate, "NaN"),
        (numpy.zeros(20_000), rate, "lasts 1.2 s and the model hears at most 1 s"),
        ({"array": numpy.zeros((2, 90)), **rate}, {}, "one channel"),
        ("what", rate, "no str"),
        ([], rate, "there is nothing"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            llm.generate(inputs=bad, **more)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_bad_features_are_refused_in_one_sentence(family: str) -> None:
    llm, name = dp.LLM(model(family), speculate=None), name_of(family)
    (good,) = features(family, 1)
    nan = good.clone()
    nan[..., -1] = torch.nan
    bad: list[tuple[dict[str, Any], str]] = [
        ({"inputs": {name: nan}}, "NaN or infinite"),
        ({"inputs": {name: good[..., :0]}}, "are of shape"),
        ({"inputs": {name: good.long()}}, "floating-point"),
        ({"inputs": {"what": good}}, "reads audio"),
        ({"prompts": [[3, 4]]}, "reads audio"),
        ({"prompts": [[3, 4]], "inputs": {name: good}}, "not both"),
        ({"inputs": torch.zeros(9000), "sampling_rate": 16_000}, "without a feature extractor"),
    ]
    if family == "Moonshine":
        bad += [({"inputs": {name: good[:60]}}, "too short")]
        bad += [({"inputs": {name: torch.zeros(1 << 23)}}, "at most 4194304")]
    else:
        bad += [({"inputs": {name: good[1:] if family == "Whisper" else good[:, 1:]}}, "shape")]
        long = good.repeat(1, 9) if family == "Whisper" else good.repeat(9, 1)
        bad += [({"inputs": {name: long}}, "exactly 40" if family == "Whisper" else "at most 200")]
    for given, words in bad:
        with pytest.raises(ValueError, match=words) as caught:
            llm.generate(**given)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="are for models that hear"):
        dp.LLM(reader("BART"), speculate=None).generate(inputs=good)


def test_commands_give_text_and_say_so(run: Any, tmp_path: Path) -> None:
    model("Whisper").save_pretrained(tmp_path)
    more = {
        "generate": ["a prompt"],
        "serve": ["--port", "0"],
        "train draft": ["--data", "none.txt", "--out", str(tmp_path / "out")],
        "train medusa": ["--data", "none.txt", "--out", str(tmp_path / "out")],
        **{name: [] for name in ("chat", "bench", "tune", "certify", "quality", "info")},
    }
    for command, words in more.items():
        code, _, err = run(*command.split(), str(tmp_path), *words)
        assert code == 2, command
        assert err.count(f"{tmp_path} reads audio, and a command gives text: ") == 1, command
