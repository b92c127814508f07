"""A draft with another tokenizer: nothing it does shows."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

import draftproof as dp
import tiny
from drafters import NATIVE, check_counters
from draftproof.proposers.foreign import ForeignDraft
from foreign_pairs import (
    ALL,
    ASCII,
    BUNDLED,
    DRAFTS,
    GREEDY,
    LINES,
    PROMPTS,
    SAMPLED,
    Shuffled,
    bytewise,
    foreign,
    guarded,
    other,
    params,
    permutation,
    plain,
    shuffled,
    target,
    written,
)
from laws import RUNS, check_law, small

# --- the output is that of plain decoding ---


EACH = [
    pytest.param(
        name, kind, marks=[pytest.mark.slow] * (name != "merges" and kind != "sampled, penalised")
    )
    for name in DRAFTS
    for kind in ALL
]


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_tokens_are_those_of_plain_decoding(name: str, kind: str) -> None:
    proposer, drafted = foreign(name), 0
    for batch in (4, 1):
        outs = written(proposer, batch, bad_token_ids=ASCII, **ALL[kind])
        assert [out.token_ids for out in outs] == plain(kind, ASCII)[-batch:]
        drafted += sum(out.stats.drafted for out in outs)
        assert 0 <= proposer.survival <= 1
    assert drafted > 0


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", pytest.param("native", marks=NATIVE)])
def test_tokens_on_other_targets(name: str, kind: str) -> None:
    native = name == "native"
    shape: dict[str, Any] = {"dtype": torch.bfloat16, "head_dim": 16} if native else {}
    model = tiny.model("llama" if native else name, vocab_size=259, **shape)
    size = len(other("merges")) + 3
    proposer = ForeignDraft(
        tiny.model("llama", 7, vocab_size=size, num_hidden_layers=2, **shape),
        tokenizer=other("merges"),
        target_tokenizer=bytewise(),
        min_confidence=0.0,
    )
    options = params(bad_token_ids=ASCII, **ALL[kind])
    base = dp.LLM(
        model,
        tokenizer=bytewise(),
        runner="native" if native else "torch",
        max_batch=1,
        speculate=None,
    )
    want = [out.token_ids for out in base.generate(PROMPTS, options)]
    with dp.LLM(base, speculate=proposer, max_batch=3) as llm:
        outs = llm.generate(PROMPTS, options)
    assert [out.token_ids for out in outs] == want and sum(out.stats.drafted for out in outs)


def test_the_law_of_the_rejection_rule() -> None:
    """What it proposes carries no laws, so it has to be verified as one-hot."""
    letters = {letter: i for i, letter in enumerate("abcdefgh"[: small(0).config.vocab_size])}
    made = Tokenizer(models.WordLevel(letters, unk_token="a"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    both = Fast(tokenizer_object=made)
    proposer = ForeignDraft(small(1), tokenizer=both, target_tokenizer=both, min_confidence=0.0)
    check_law("rejection", proposer, RUNS, max_tokens=4)


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
def test_two_turns_of_a_chat_with_a_prefix_cache(kind: str) -> None:
    options = params(bad_token_ids=ASCII, **ALL[kind])
    proposer = foreign("merges")
    with (
        dp.LLM(target(), tokenizer=bytewise(), speculate=None) as alone,
        dp.LLM(
            target(), tokenizer=bytewise(), speculate=proposer, prefix_cache=True, max_batch=1
        ) as llm,
    ):
        asked = bytewise().encode(LINES[0], add_special_tokens=False)
        passes = guarded(proposer.runner)
        for _ in range(3):
            begin = len(passes)
            (out,) = llm.generate([asked], options)
            assert out.token_ids == alone.generate([asked], options)[0].token_ids
            asked = [*asked, *out.token_ids, 40, 41]
        again = passes[begin][0]
        assert 0 < len(again.new) < 16, "the first turns were read again"


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
def test_an_output_of_any_bytes(kind: str) -> None:
    outs = written(foreign("merges"), 4, **ALL[kind])
    assert [out.token_ids for out in outs] == plain(kind, ())
    assert any("\ufffd" in out.text for out in outs)


@pytest.mark.parametrize("name", ["merges", "wordpiece"])
def test_the_rejection_rule(name: str) -> None:
    cold = written(foreign(name), 4, "rejection", bad_token_ids=ASCII, **GREEDY)
    assert [out.token_ids for out in cold] == plain("greedy", ASCII)
    proposer = foreign(name)
    outs = written(proposer, 3, "rejection", bad_token_ids=ASCII, **SAMPLED)
    assert all(len(out.token_ids) == 18 for out in outs)
    assert sum(out.stats.drafted for out in outs) > 0


# --- the same model behind other ids is a perfect draft ---


def behind_other_ids() -> ForeignDraft:
    order = permutation(259)
    return ForeignDraft(
        shuffled(target(), order),
        tokenizer=Shuffled(bytewise(), order),
        target_tokenizer=bytewise(),
        min_confidence=0.0,
        branch=1,  # a second choice is never right
    )


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_target_behind_other_ids_is_always_right(kind: str, rule: str) -> None:
    proposer = behind_other_ids()
    outs = written(proposer, 4, rule, bad_token_ids=ASCII, **ALL[kind])
    if rule == "coupled":
        assert [out.token_ids for out in outs] == plain(kind, ASCII)
    if rule == "coupled" or kind.startswith("greedy"):
        assert [out.stats.steps for out in outs] == [3] * 4  # 18 tokens, 6 a step
        assert all(out.stats.accepted == out.stats.drafted for out in outs)
    assert sum(out.stats.accepted for out in outs) > 0
    assert proposer.survival == 1.0


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_counters_are_those_of_the_trace(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"tokenizer": bytewise(), "speculate": behind_other_ids(), "rule": rule}
    with dp.LLM(target(), **{"max_batch": 3, "speculate": None, **options}) as llm:
        some = [params(bad_token_ids=ASCII), params(temperature=0.9, seed=3, bad_token_ids=ASCII)]
        check_counters(monkeypatch, llm, PROMPTS, some)


@cache
def bundled(name: str) -> tuple[PreTrainedModel, Any]:
    folder = BUNDLED / name
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return loaded, AutoTokenizer.from_pretrained(folder)


def coarser(tokenizer: Any, share: float) -> Any:
    """The tokenizer without its last merges, so that many of its words are in more pieces."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = spec["model"]["merges"]
    spec["model"]["merges"] = merges[: int(share * len(merges))]
    made = Tokenizer.from_str(json.dumps(spec))
    return Fast(tokenizer_object=made, bos_token=tokenizer.bos_token)


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_trained_pair_with_two_tokenizers(temperature: float) -> None:
    (model, tokenizer), (small, own) = bundled("target"), bundled("draft")
    order = permutation(8192)
    proposers = [
        dp.DraftModel(small, branch=1, min_confidence=0.0),
        ForeignDraft(
            shuffled(small, order),
            tokenizer=Shuffled(own, order),
            target_tokenizer=tokenizer,
            min_confidence=0.0,
        ),
        ForeignDraft(
            small,
            tokenizer=coarser(own, 0.5),
            target_tokenizer=tokenizer,
            min_confidence=0.0,
        ),
    ]
    texts = ["def read(self, size=-1):\n    ", "import os\nimport sys\n\nclass Größe:\n"]
    results = []
    for proposer in proposers:
        with dp.LLM(model, tokenizer=tokenizer, speculate=proposer) as llm:
            outs = llm.generate(
                texts, dp.SamplingParams(temperature=temperature, max_tokens=48, seed=1)
            )
        results.append(sum(out.stats.accepted for out in outs))
    own_tokens, permuted, halves = results
    assert permuted >= 0.8 * own_tokens > 0
    assert halves >= 0.8 * own_tokens
    assert all(0.9 < proposer.survival <= 1 for proposer in proposers[1:])
