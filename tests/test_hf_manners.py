"""The drop-in says what it did and what it is; what cannot generate says what to wrap it in."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, StoppingCriteria

import draftproof as dp
from spelling import model, tokenizer

NEW = 20
FAST = partial(dp.custom_generate, "ngram")


def written(target: PreTrainedModel, **options: object) -> torch.Tensor:
    ids = torch.tensor([tokenizer()("def f(x):")["input_ids"]])
    defaults = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    return target.generate(ids, attention_mask=torch.ones_like(ids), **{**defaults, **options})


def test_stats_of_the_last_call() -> None:
    fast = dp.custom_generate("ngram")
    assert fast.stats == []
    written(model(), custom_generate=fast)
    assert [stats.tokens for stats in fast.stats] == [NEW]
    ids = torch.tensor([[5, 6], [7, 8]])
    model().generate(ids, max_new_tokens=3, do_sample=False, custom_generate=fast)
    assert len(fast.stats) == 2 and all(stats.steps for stats in fast.stats)


def test_it_says_what_it_is() -> None:
    fast = dp.custom_generate(dp.NGram(5), rule="rejection", seed=3)
    assert repr(fast) == (
        "custom_generate(NGram(num_draft_tokens=5), rule='rejection', seed=3, max_batch=8)"
    )
    with dp.LLM(model(), tokenizer=tokenizer(), speculate="ngram") as llm:
        for word in ("LLM(", "Llama", "torch", "float32", "NGram()", "coupled"):
            assert word in repr(llm)
        llm.use("auto")
        assert "Auto(sources=[" in repr(llm) and "ngram" in repr(llm) and "clock" not in repr(llm)
    both = repr(dp.Hybrid([dp.Lookahead(), dp.DraftModel(model(), 3)], max_nodes=9))
    for word in ("Hybrid(parts=[Lookahead(", "model=LlamaForCausalLM", "max_nodes=9"):
        assert word in both


@pytest.mark.parametrize("drafter", [dp.NGram(), dp.Lookahead(), dp.DraftModel("bundled")])
def test_a_drafter_does_not_generate(drafter: object) -> None:
    with pytest.raises(TypeError, match=rf"wrap it.*{type(drafter).__name__}"):
        written(model(), custom_generate=drafter)


def test_stop_strings_take_the_tokenizer_of_the_call() -> None:
    plain = written(model())
    prompt = tokenizer()("def f(x):")["input_ids"]
    text = tokenizer().decode(plain[0, len(prompt) :])
    stop = {"stop_strings": [text[5:7]], "tokenizer": tokenizer()}
    want = written(model(), **stop)
    assert want.shape[1] < plain.shape[1]
    for drafter in (None, "ngram"):
        got = written(model(), custom_generate=dp.custom_generate(drafter), **stop)
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match="tokenizer"):  # transformers' own
        written(model(), custom_generate=dp.custom_generate(), stop_strings=["a"])
    got = written(model(), custom_generate=dp.custom_generate(), tokenizer=tokenizer())
    assert torch.equal(got, plain)
    assert "tokenizer" not in inspect.signature(dp.custom_generate()).parameters


class Sure(StoppingCriteria):
    """Ends an output when the sum over all scores so far says so; keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> torch.Tensor:
        self.shown.append(None if scores is None else [each.clone() for each in scores])
        ended = scores is not None and len(scores) == 7
        return torch.full((len(input_ids),), ended)


@pytest.mark.parametrize("kept", [True, False])
def test_stopping_criteria_see_the_scores_that_transformers_shows(kept: bool) -> None:
    options = {"return_dict_in_generate": kept, "output_scores": kept, "repetition_penalty": 1.5}
    theirs, mine = Sure(), Sure()
    want = written(model(), stopping_criteria=[theirs], **options)
    out = written(model(), stopping_criteria=[mine], **options, custom_generate=FAST())
    assert len(mine.shown) == len(theirs.shown) == (7 if kept else NEW)
    if not kept:
        assert torch.equal(out, want) and mine.shown == theirs.shown == [None] * NEW
        return
    assert torch.equal(out["sequences"], want["sequences"])
    for got, wanted in zip(mine.shown, theirs.shown, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_cannot_be_copied_says_so(copied: Callable[[Any], Any]) -> None:
    with dp.LLM(model(), speculate=None) as llm:
        for thing, way in ((llm, r"dp\.LLM\(llm\)"), (FAST(), r"dp\.custom_generate\(\.\.\.\)")):
            with pytest.raises(TypeError, match=f"neither copied nor pickled: use {way}"):
                copied(thing)


def test_a_call_of_the_owner_in_the_middle_of_a_pass_says_how_to_wait() -> None:
    with dp.LLM(model(), speculate=None) as llm:
        ids = torch.tensor([[1, 2, 3]])
        with pytest.raises(RuntimeError, match=r"llm\.runner\.takeover\.alone\(lambda: model"):
            llm.runner.takeover.run("draftproof", lambda: model()(ids))
        assert llm.runner.takeover.alone(lambda: model()(ids)).logits.shape[1] == 3


def test_what_makes_a_loop_is_not_the_loop() -> None:
    with pytest.raises(TypeError, match=r"fast = dp\.custom_generate\(\), then custom_generate=fa"):
        written(model(), custom_generate=dp.custom_generate)
