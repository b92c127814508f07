"""Grammars on encoder-decoders: the text of the plain pass whatever drafts, and under rejection."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import encoders
import spelling

GRAMMARS = [
    dp.Grammar.regex(r'\{"kind":"(a|bb|bcd)","size":[1-9]?[0-9],"on":(true|false)\}'),
    dp.Grammar.regex("[a-d]{3,9}(,[a-d]{2,4}){1,3}"),
    dp.Grammar.choice(["yes", "no", "it may be"]),
]
PROMPTS = ["make one: ", "and", "x = 1\ny"]


@cache
def model(family: str, seed: int = 0) -> PreTrainedModel:
    make: Any = encoders.FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(2, vocab_size=len(spelling.tokenizer())).double().eval()  # type: ignore[no-any-return]


def written(family: str, speculate: Any, **options: Any) -> list[dp.Completion]:
    rule = options.pop("rule", "coupled")
    pairs = [(prompt, grammar) for prompt in PROMPTS for grammar in GRAMMARS]
    params = [dp.SamplingParams(grammar=g, max_tokens=60, seed=4, **options) for _, g in pairs]
    given: dict[str, Any] = {"tokenizer": spelling.tokenizer(), "max_batch": 3}
    with dp.LLM(model(family), speculate=speculate, rule=rule, **given) as llm:
        done = llm.generate([prompt for prompt, _ in pairs], params)
        llm.engine.check()
    for one, (_, grammar) in zip(done, pairs, strict=True):
        assert not one.error and one.finish_reason == "stop"
        if grammar.kind == "regex":
            assert re.fullmatch(grammar.source, one.text)
        else:
            assert one.text in ("yes", "no", "it may be")
    return done


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("family", ["T5", "BART", pytest.param("M2M100", marks=pytest.mark.slow)])
def test_speculation_changes_no_text(family: str, temperature: float) -> None:
    plain = written(family, None, temperature=temperature)
    assert len({one.text for one in plain}) > len(GRAMMARS)
    accepted = 0
    for speculate in ("auto", dp.NGram(min_ngram=1), dp.DraftModel(model(family))):
        done = written(family, speculate, temperature=temperature)
        assert [one.token_ids for one in done] == [one.token_ids for one in plain]
        accepted = sum(one.stats.accepted for one in done)
    assert accepted > 20


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_under_rejection_what_is_written_is_valid(family: str) -> None:
    draft = dp.DraftModel(model(family, 1), 4, min_confidence=0.0)
    done = written(family, draft, rule="rejection", temperature=1.3)
    assert sum(one.stats.accepted for one in done) > 0
