"""Prompts and parameters that every method is run with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import draftproof as dp
from drafters import target

RNG = Random(3)
PROMPTS = [
    [7, 8, 9, 7, 8, 9, 7, 8],
    [RNG.randrange(3, 97) for _ in range(21)],
    [5],
    [20, 21, 22, 23, 24] * 3,
]
GREEDY = dp.SamplingParams(max_tokens=30)
SAMPLED = dp.SamplingParams(
    temperature=0.9,
    top_k=30,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=-1.0,  # a random model does not repeat itself else, and look-up finds nothing
    max_tokens=30,
    seed=5,
)


def written(llm: dp.LLM, params: dp.SamplingParams, together: bool = True) -> list[dp.Completion]:
    if together:
        done = llm.generate(PROMPTS, params)
    else:
        done = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
    assert not any(one.warnings or one.error for one in done)
    return done


def told(done: Sequence[dp.Completion]) -> list[tuple[list[int], str]]:
    return [(one.token_ids, one.finish_reason) for one in done]


def texts(
    llm: dp.LLM, params: dp.SamplingParams, together: bool = True
) -> list[tuple[list[int], str]]:
    return told(written(llm, params, together))


@cache
def plain(name: str, params: dp.SamplingParams) -> list[tuple[list[int], str]]:
    return texts(dp.LLM(target(name), speculate=None), params, together=False)
