"""A target, its relative, and what they write with a proposer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.drafting.base import Drafter
from draftproof.request import Request
from draftproof.tree import TokenTree

PROMPTS = [[5, 6, 7], [8], [9, 10, 9, 10, 9, 10], [11 + i for i in range(30)]]


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", dtype=torch.float64)


@cache
def relative() -> PreTrainedModel:
    return tiny.relative(target())


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(
        **{"temperature": 1.0, "seed": 1, "max_tokens": 30, "ignore_eos": True, **options}
    )


@cache
def plain(**options: Any) -> list[list[int]]:
    with dp.LLM(target(), speculate=None) as llm:
        return [out.token_ids for out in llm.generate(PROMPTS, params(**options))]


def written(proposer: Any, rule: str = "coupled", **options: Any) -> list[dp.Completion]:
    with dp.LLM(target(), speculate=proposer, rule=rule, max_batch=3) as llm:
        return llm.generate(PROMPTS, params(**options))


def tokens_of(outs: Sequence[dp.Completion]) -> list[list[int]]:
    return [out.token_ids for out in outs]


def accepted(outs: Sequence[dp.Completion]) -> int:
    return sum(out.stats.accepted for out in outs)


def in_turns(a: dp.LLM, b: dp.LLM) -> list[list[int]]:
    """What two LLMs stream after PROMPTS[2] and PROMPTS[3], a chunk of each in turn."""
    streams = [a.stream(PROMPTS[2], params()), b.stream(PROMPTS[3], params())]
    got: list[list[int]] = [[], []]
    for _ in range(60):
        for stream, tokens in zip(streams, got, strict=True):
            chunk = next(stream, None)
            tokens += chunk.token_ids if chunk else []
    return got


class Spy(Drafter):
    """Notes the trees of a proposer."""

    def __init__(self, proposer: Any) -> None:
        self.proposer, self.trees = proposer, []
        self.bind, self.release = proposer.bind, proposer.release  # type: ignore[method-assign]

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        made = self.proposer.propose(requests)
        self.trees += zip([(r.rule, r.room) for r in requests], made, strict=True)
        return made
