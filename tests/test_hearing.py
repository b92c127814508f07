"""Models that hear write what transformers writes, whatever drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import draftproof as dp
from hearing import FAMILIES, features, model, name_of, own

NEW = 14
METHODS: dict[str, Callable[[str], Any]] = {
    "ngram": lambda family: dp.NGram(min_ngram=1),
    "suffix": lambda family: dp.SuffixAutomaton(min_match=1),
    "draft": lambda family: dp.DraftModel(model(family, 1, 1)),
    "itself": lambda family: dp.DraftModel(model(family)),
    "specinfer": lambda family: dp.SpecInfer([model(family)], expansion=(2, 1)),
    "early-exit": lambda family: dp.EarlyExit(1, 3, min_confidence=0.0),
    "auto": lambda family: dp.Auto("ngram", dp.DraftModel(model(family))),
}
OFTEN_RIGHT = ("ngram", "suffix", "itself", "specinfer")


def tokens(llm: dp.LLM, inputs: Any, **options: Any) -> list[list[int]]:
    done = llm.generate(inputs=inputs, params=dp.SamplingParams(**{"max_tokens": NEW, **options}))
    assert [one.error for one in done] == [None] * len(done)
    return [one.token_ids for one in done]


@pytest.mark.parametrize("family", FAMILIES)
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
