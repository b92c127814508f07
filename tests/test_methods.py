"""Every method, any model, batch and sampling: the tokens of plain decoding, wherever they end.

Drafts are disturbed copies of the target, so that they agree often and err often.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import draftproof as dp
import tiny
from drafters import METHODS, NATIVE, Eager, exit_head, lm_heads, target
from draftproof import methods
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.runners import probe
from draftproof.runners.loading import Refused
from draftproof.runners.native import NativeRunner
from method_prompts import GREEDY, PROMPTS, SAMPLED, plain, texts, told, written

NAMES = ("llama", "qwen3", "gemma3")
DEEP = ("specinfer", "staged twice")  # many passes of drafts: every model with them takes long
OTHERS = ("ngram", "draft", "medusa", "hybrid")  # each asks something else of a target


def often(name: str, method: str, kind: str) -> bool:
    """Whether it runs with the fast tests: each method once, and some greedily and elsewhere."""
    if name == "llama":
        return kind == "sampled" or method in OTHERS
    return method in OTHERS and (name == "qwen3") == (kind == "greedy")


EACH = [
    pytest.param(
        name,
        method,
        params,
        marks=[pytest.mark.slow] * (not often(name, method, kind)),
        id=f"{name}-{method}-{kind}",
    )
    for name in NAMES
    for method in METHODS
    for kind, params in (("greedy", GREEDY), ("sampled", SAMPLED))
]
SHALLOW = [pytest.param(each, marks=[pytest.mark.slow] * (each in DEEP)) for each in METHODS]
OFTEN = [pytest.param(name, marks=() if name == "llama" else pytest.mark.slow) for name in NAMES]


ENDLESS = replace(SAMPLED, ignore_eos=True)  # some of the texts end before anything is found else


def check(llm: dp.LLM, params: dp.SamplingParams, want: list[tuple[list[int], str]]) -> None:
    """All prompts together, then a text that repeats itself and a single token, each alone."""
    done = written(llm, params)
    assert told(done) == want
    alone = [llm.generate(PROMPTS[number], params)[0] for number in (0, 2)]
    assert told(alone) == [want[0], want[2]] and not any(one.warnings for one in alone)
    assert any(one.stats.accepted for one in done)  # else it shows nothing
    assert any(one.stats.drafted for one in alone)


@pytest.mark.parametrize(("name", "method", "params"), EACH)
def test_tokens_are_those_of_plain_decoding(
    name: str, method: str, params: dp.SamplingParams
) -> None:
    with dp.LLM(target(name), speculate=METHODS[method](name)) as llm:
        check(llm, params, plain(name, params))


@NATIVE
@pytest.mark.parametrize("params", [GREEDY, ENDLESS], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OFTEN[:2])  # Gemma3 it does not take
def test_bits_of_the_native_runner(name: str, method: str, params: dp.SamplingParams) -> None:
    model = tiny.model(name, dtype=torch.bfloat16, head_dim=16)
    other = tiny.relative(model, 0.05)
    made: dict[str, Any] = {
        "draft": dp.DraftModel(other, 5, min_confidence=0.0),
        "shaped draft": dp.DraftModel(other, tree=[(0,), (1,), (0, 0), (1, 0), (1, 1)]),
        "fitted draft": dp.DraftModel(other, tree="auto"),
        "specinfer": dp.SpecInfer([other, tiny.relative(model, 0.1)], expansion=(1, 3, 1)),
        "staged": dp.Staged(other, dp.NGram(min_ngram=1), 6, min_confidence=0.0),
        "staged twice": dp.Staged(other, dp.Medusa(lm_heads(name), nodes=6), 6),
        "hybrid": dp.Hybrid([dp.NGram(min_ngram=1), dp.Lookahead(3, 3, 3)], 9),
        "auto": Eager(dp.NGram(min_ngram=1), dp.DraftModel(other)),
    }
    base = dp.LLM(model, runner="native", speculate=None)
    want = texts(base, params, together=False)
    with dp.LLM(base, speculate=made.get(method) or METHODS[method](name)) as llm:
        check(llm, params, want)


@NATIVE
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_quantised_draft(precision: str) -> None:
    """The target itself in fewer bits drafts for one on torch, and for one on the native runner."""
    model = tiny.model("llama", dtype=torch.bfloat16, head_dim=16)
    on_torch = dp.LLM(copy.deepcopy(model).float(), speculate=None)
    for base in (on_torch, dp.LLM(model, runner="native", speculate=None)):
        want = texts(base, SAMPLED)
        quantised = dp.DraftModel(model, 4, quantize=precision, min_confidence=0.0)
        with dp.LLM(base, speculate=quantised) as llm:
            assert texts(llm, SAMPLED) == want
            (one,) = llm.generate([PROMPTS[1]], SAMPLED)
        assert quantised.beside.runner.precision == precision
        assert one.stats.accepted > one.stats.steps
        with pytest.raises(ValueError, match="native|quantised"):
            dp.LLM(base, speculate=dp.DraftModel(tiny.model("gemma3"), quantize=precision))
    with pytest.raises(ValueError, match="quantize='int2' is unknown"):
        dp.DraftModel(model, quantize="int2")


def quantised_draft(base: dp.LLM, model: Any, **options: Any) -> str:
    """The precision that a draft runs in, which changes no text."""
    draft = dp.DraftModel(model, 4, min_confidence=0.0, **options)
    want = texts(base, SAMPLED)
    with dp.LLM(base, speculate=draft) as llm:
        assert texts(llm, SAMPLED) == want
    return draft.beside.runner.precision


@NATIVE
def test_a_draft_is_quantised_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("llama", dtype=torch.bfloat16, head_dim=16)
    native = dp.LLM(model, runner="native", speculate=None)
    assert quantised_draft(native, model) == "int8"
    assert quantised_draft(native, model, quantize="none") == "bfloat16"
    with dp.LLM(model, dtype="int4", speculate=None) as llm:
        assert quantised_draft(llm, model) == quantised_draft(llm, model, quantize="none") == "int4"
    on_torch = dp.LLM(copy.deepcopy(model).float(), speculate=None)
    assert quantised_draft(on_torch, on_torch.runner.model) == "float32"

    check = probe.check_native

    def doubtful(runner: NativeRunner, *given: Any) -> None:
        if runner.precision == "int8":
            raise Refused("its logits come out far off")
        check(runner, *given)

    monkeypatch.setattr(probe, "check_native", doubtful)
    assert quantised_draft(native, model) == "bfloat16"
    with pytest.raises(ValueError, match="far off"):
        quantised_draft(native, model, quantize="int8")


# Where no token of the first 24 comes twice each of them can be the one that ends the text.
DISTINCT = {"presence_penalty": 2.0, "repetition_penalty": 3.0, "frequency_penalty": 0.0}
KINDS = {
    "greedy": replace(GREEDY, ignore_eos=True, **DISTINCT),
    "sampled": replace(ENDLESS, **DISTINCT),
    "repeating": ENDLESS,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "sampled")) for kind in KINDS]
)
@pytest.mark.parametrize("method", SHALLOW)
@pytest.mark.parametrize("name", OFTEN)
def test_an_end_at_every_position(name: str, method: str, kind: str) -> None:
    """A stop token, or the last token there is room for, anywhere in a block."""
    params, prompt = KINDS[kind], PROMPTS[1]
    whole = plain(name, params)[1][0]
    assert kind == "repeating" or len(set(whole[:24])) == 24
    cut = [replace(params, max_tokens=n) for n in range(1, 25)]
    stops = [replace(params, stop_token_ids=[whole[n - 1]]) for n in range(1, 25)]
    with dp.LLM(target(name), speculate=METHODS[method](name), max_batch=48) as llm:
        done = llm.generate([prompt] * 48, cut + stops)
        for n, one in enumerate(done[:24], 1):
            assert (one.token_ids, one.finish_reason) == (whole[:n], "length")
        for n, one in enumerate(done[24:], 1):
            first = whole.index(whole[n - 1]) + 1
            assert (one.token_ids, one.finish_reason) == (whole[:first], "stop")
    limit = len(prompt) + 20
    made = METHODS[method](name)
    with dp.LLM(target(name), speculate=made, max_length=limit) as llm:
        (one,) = llm.generate([prompt], params)
        assert (one.token_ids, one.finish_reason) == (whole[:20], "length")


@cache
def two_letters() -> PreTrainedTokenizerFast:
    """Every token is two letters."""
    strings = map("".join, itertools.product("abcdefghij", repeat=2))
    made = Tokenizer(models.WordLevel({s: i for s, i in zip(strings, range(97), strict=False)}))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("method", SHALLOW)
@pytest.mark.parametrize("name", OFTEN)
def test_a_stop_string_across_tokens(name: str, method: str) -> None:
    """It begins within one token and ends within the next."""
    prompt, text = PROMPTS[1], two_letters().decode(plain(name, ENDLESS)[1][0])
    stops = [text[2 * at + 1 : 2 * at + 4] for at in range(24)]
    ends = [text.index(stop) for stop in stops]
    each = [replace(ENDLESS, stop=[stop]) for stop in stops]
    made = METHODS[method](name)
    with dp.LLM(target(name), tokenizer=two_letters(), speculate=made, max_batch=24) as llm:
        for end, one in zip(ends, llm.generate([prompt] * 24, each), strict=True):
            assert (one.text, one.finish_reason) == (text[:end], "stop")
            assert len(one.token_ids) == (end + 3 + 1) // 2


@pytest.mark.parametrize("runner", ["torch", pytest.param("native", marks=NATIVE)])
def test_an_exit_head_that_repeats_the_lm_head_drafts_what_the_bare_exit_drafts(
    runner: str,
) -> None:
    model = tiny.model(dtype=torch.bfloat16, head_dim=16) if runner == "native" else target("llama")
    heads = Heads(torch.zeros(1, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=1)
    seen = []
    for kind in ({"layers": 1}, {"heads": heads}):
        made = dp.EarlyExit(num_draft_tokens=4, min_confidence=0.0, **kind)
        with dp.LLM(model, speculate=made, runner=runner, max_batch=3) as llm:
            done = llm.generate(PROMPTS, SAMPLED)
        seen.append([(one.token_ids, one.stats.drafted, one.stats.accepted) for one in done])
    assert seen[0] == seen[1] and any(accepted for *_, accepted in seen[0])


def test_heads_go_to_the_method_that_they_are_of(tmp_path: Path) -> None:
    files.save(tmp_path / "exit", exit_head("llama"))
    last = Heads(torch.zeros(2, 1, 48, 48), vocab_size=tiny.VOCABULARY)
    files.save(tmp_path / "last", last)
    middle, end = ({"draft": None, "heads": tmp_path / name} for name in ("exit", "last"))
    assert methods.listed([], middle) == ["early-exit"] and methods.listed([], end) == ["medusa"]
    assert methods.listed(["early-exit"], middle) == ["early-exit"]
    assert methods.listed(["ngram"], middle) == ["ngram", "early-exit"]
    assert "medusa" in methods.possible(end) and "medusa" not in methods.possible(middle)
    made = methods.named("early-exit", middle)
    assert isinstance(made, dp.EarlyExit) and made.layers == 1 and made.heads is not None
    assert methods.named("early-exit", end).heads is None
    with pytest.raises(ValueError, match="these heads read layer 1: use them with EarlyExit"):
        methods.named("medusa", middle)
    with pytest.raises(ValueError, match="these heads read the last layer: use them with Medusa"):
        dp.EarlyExit(heads=last)
    with pytest.raises(ValueError, match="the head reads layer 1, not 2: drop layers"):
        dp.EarlyExit(2, heads=exit_head("llama"))
    with pytest.raises(ValueError, match="exit=2 is of one head"):
        Heads(torch.zeros(2, 1, 48, 48), vocab_size=tiny.VOCABULARY, exit=2)
    with pytest.raises(ValueError, match="these heads read the last layer: use them with Medusa"):
        dp.EarlyExit(2, heads=last)
    own = Heads(torch.zeros(1, 1, 48, 48), None, torch.zeros(1, 97, 48), vocab_size=97, exit=3)
    for write in (files.export_vllm, files.export_original):
        with pytest.raises(ValueError, match="is no Medusa head"):
            write(tmp_path / "other", own)
    (tmp_path / "last" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="last: config.json cannot be read"):
        methods.listed([], end)
    with (
        pytest.raises(ValueError, match="use heads of this target"),
        dp.LLM(target("llama"), speculate=None) as llm,
    ):
        llm.use(dp.EarlyExit(heads=Heads(torch.zeros(1, 1, 32, 32), vocab_size=97, exit=1)))
