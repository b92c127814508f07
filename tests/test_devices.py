"""On another device than the CPU: what is written there is what the CPU writes.

The pretended one finds tensors that were made in the wrong place; `pytest -m gpu` asks a real one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import encoders
import laws
import pretended
import tiny
from cases import PROMPTS, SAMPLED
from generating import inputs
from generating import model as generating_model
from marking import all_but_some_slow
from speculating import TOKENS, draft, generated, params_of, target


@pytest.fixture(params=[pretended.NAME, pytest.param("cuda", marks=pytest.mark.gpu)])
def there(
    request: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PreTrainedModel]]:
    """Copies of models there: those of tests are shared."""
    if request.param == pretended.NAME:
        with pretended.pretended(monkeypatch):
            yield lambda model: copy.deepcopy(model).to(f"{pretended.NAME}:0")
    elif torch.cuda.is_available():
        yield lambda model: copy.deepcopy(model).to("cuda")
    else:
        pytest.skip("torch sees no GPU")


def tokens(llm: dp.LLM, given: Any, params: Any) -> list[list[int]]:
    done = llm.generate(given, params)
    assert [one.error for one in done] == [None] * len(done)
    return [one.token_ids for one in done]


# --- architectures ---


@pytest.mark.parametrize("name", all_but_some_slow(tiny.CONFIGS, "llama"))
def test_architectures(there: Any, name: str) -> None:
    greedy, drawn = dp.SamplingParams(max_tokens=TOKENS), params_of("everything")
    some = PROMPTS[:2]
    with dp.LLM(target(name, torch.float64), speculate=None) as llm:
        want = tokens(llm, some, drawn)
    made = there(target(name, torch.float64))
    drafting = dp.DraftModel(there(draft(name, torch.float64)), 5, min_confidence=0.0, branch=3)
    with dp.LLM(made, speculate=drafting, max_batch=3) as llm:
        assert tokens(llm, some, greedy) == generated(name, torch.float64)[:2]
        assert tokens(llm, some, drawn) == want


@pytest.mark.slow
def test_every_parameter(there: Any) -> None:
    some = PROMPTS[:2]
    with dp.LLM(target("llama", torch.float64), speculate=None) as llm:
        want = {case: tokens(llm, some, params_of(case, max_tokens=8)) for case in SAMPLED}
    with dp.LLM(there(target("llama", torch.float64)), speculate=dp.NGram(min_ngram=1)) as llm:
        for case, each in want.items():
            assert tokens(llm, some, params_of(case, max_tokens=8)) == each, case


@pytest.mark.parametrize("family", all_but_some_slow(encoders.FAMILIES, "T5", "Whisper"))
def test_encoder_decoders(there: Any, family: str) -> None:
    made, given = encoders.model(family), encoders.prompts(5)
    params = dp.SamplingParams(max_tokens=14)
    want = tokens(dp.LLM(made, speculate=None), given, params)
    on_gpu = dp.LLM(there(made), speculate=None, max_batch=3)
    assert tokens(on_gpu, given, params) == want
    methods = encoders.methods(lambda *words: there(encoders.model(*words)))
    for name in ("ngram", "draft", "early-exit"):
        llm = dp.LLM(on_gpu, speculate=methods[name](family), max_batch=3)
        assert tokens(llm, given, params) == want, name


# --- doors ---


@pytest.mark.parametrize("batch", [1, 3])
def test_drop_in(there: Any, batch: int) -> None:
    made = there(generating_model("llama"))
    given = {name: each.to(made.device) for name, each in inputs(batch).items()}
    options = {"max_new_tokens": 20, "do_sample": False}
    want = made.generate(**given, **options)
    method = dp.custom_generate(dp.NGram(min_ngram=1))
    ours = made.generate(**given, **options, custom_generate=method)
    assert ours.device == want.device and torch.equal(ours, want)


@pytest.mark.slow
def test_law_of_the_rejection_rule(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, own = laws.exact_law, laws.small(0)
    monkeypatch.setattr(laws, "exact_law", lambda target, *rest: exact(own, *rest))
    drafting = dp.DraftModel(there(laws.small(1)), 3, min_confidence=0.0)
    laws.check_law("rejection", drafting, laws.RUNS, target=there(own))
