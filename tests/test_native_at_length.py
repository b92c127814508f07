"""The native runner: hundreds of prompts on the bundled pair."""

from __future__ import annotations

from functools import cache

import pytest

import draftproof as dp
from draftproof import bundled, methods, native
from draftproof.bundled import corpus
from native_models import PRECISIONS

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


BUNDLED = {"draft": bundled.DRAFT, "heads": bundled.MODELS / "heads"}


@cache
def bundled_target(precision: str) -> dp.LLM:
    dtype = "int8" if precision == "int8" else "bfloat16"
    return dp.LLM(bundled.folder("target"), runner="native", dtype=dtype, speculate=None)


@cache
def written_plainly(precision: str, temperature: float) -> tuple[list[list[int]], list[list[int]]]:
    """200 beginnings of held-out code, and what the target writes after them, one at a time."""
    llm = bundled_target(precision)
    held_out = [text for path, text in corpus.modules(only_held_out=True)]
    prompts = []
    for i in range(200):
        text = held_out[i % len(held_out)]
        ids = llm.tokenizer(text)["input_ids"]
        at = 61 * i % max(1, len(ids) - 200)
        prompts.append(ids[at : at + 5 + i % 150])
    params = long_params(temperature)
    return prompts, [llm.generate([each], params)[0].token_ids for each in prompts]


def long_params(temperature: float) -> dp.SamplingParams:
    return dp.SamplingParams(temperature=temperature, max_tokens=256, seed=11, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", *methods.possible(BUNDLED), "both"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_200_prompts_of_256_tokens(precision: str, temperature: float, method: str) -> None:
    prompts, want = written_plainly(precision, temperature)
    names = ["ngram", "draft"] if method == "both" else [method]
    drafter = [methods.named(name, BUNDLED) for name in names]
    with dp.LLM(bundled_target(precision), speculate=drafter, max_batch=5) as llm:
        got = llm.generate(prompts, long_params(temperature))
    assert sum(len(one.token_ids) for one in got) == 200 * 256
    assert [one.token_ids for one in got] == want
