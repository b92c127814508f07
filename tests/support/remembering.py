"""LLMs with a prefix cache, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.runners.torch import TorchRunner

DEEPEST = 8  # what NGram drafts at most: so many accepted tokens may not be cached at the end


@cache
def model(name: str = "llama") -> PreTrainedModel:
    return tiny.model(name, dtype=torch.float64, layers=2, max_position_embeddings=2048)


@cache
def draft(name: str = "llama") -> PreTrainedModel:
    return tiny.relative(model(name))


METHODS: dict[str, Callable[[str], Any]] = {
    "plain": lambda name: None,
    "ngram": lambda name: dp.NGram(DEEPEST, min_ngram=1),
    "draft": lambda name: dp.DraftModel(draft(name), 4, min_confidence=0.0, branch=2),
}


def llm(name: str = "llama", **options: Any) -> dp.LLM:
    return dp.LLM(model(name), **{"speculate": None, **options})


def some(rng: Random, count: int) -> list[int]:
    return [rng.randrange(3, tiny.VOCABULARY) for _ in range(count)]


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 12, "seed": 3, **options})


def tokens_of(llm: dp.LLM, prompt: Sequence[int], **options: Any) -> list[int]:
    return llm.generate([*prompt], params(**options))[0].token_ids


def reading(llm: dp.LLM) -> list[int]:
    """Grows, with every pass of the target, by the committed tokens that it is given to read."""
    read, forward = [], llm.runner.forward

    def spy(work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        read.append(sum(len(item.new) for item in work))
        return forward(work, taps)

    llm.runner.forward = spy  # type: ignore[method-assign]
    return read


def runners(llm: dp.LLM) -> list[TorchRunner]:
    """The target's, and the draft's if there is one."""
    beside = getattr(llm.engine.proposer, "beside", None)
    return [llm.runner, *([beside.runner] if beside else [])]


def books_are_right(runner: TorchRunner, requests: Sequence[Request]) -> None:
    """No row is lost or had by two, and the runner knows what its rows hold."""
    runner.check([each.key for each in requests])
    for each in requests:
        if each.key in runner._tokens:
            length = runner.cached(each.key)
            assert list(runner._tokens[each.key][:length]) == each.tokens[:length]
