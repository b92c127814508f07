"""Drafters beside a target, and the texts that they draft for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.request import Request

V = tiny.VOCABULARY
SLOW = pytest.mark.slow
LONG_ROOM = {"dtype": torch.float64, "max_position_embeddings": 2600}


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", **LONG_ROOM)


@cache
def draft(share: float = 0.1) -> PreTrainedModel:
    return tiny.relative(target(), share)


def drafted(proposer: Any, share: float = 0.0, **options: Any) -> dp.LLM:
    return dp.LLM(target(), speculate=proposer, **options)


def some(seed: int, length: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, V) for _ in range(length)]


def run(llm: dp.LLM, requests: Sequence[Request]) -> list[list[int]]:
    while not all(request.finished for request in requests):
        llm.engine.step()
    return [request.output for request in requests]


def guarded(runner: Any, seen: list[int]) -> None:
    forward = runner.forward

    def checked(work: Any, *args: Any, **options: Any) -> Any:
        for item in work:
            ids = [*item.new, *(item.tree.tokens if item.tree is not None else ())]
            assert all(0 <= token < runner.vocabulary for token in ids), "no row for that id"
            seen.extend(ids)
        return forward(work, *args, **options)

    runner.forward = checked


def models_of(proposer: Any) -> Iterator[Any]:
    """The runners of all models of its own."""
    parts = [*getattr(proposer, "parts", ()), *getattr(proposer, "drafts", ())]
    parts += [getattr(proposer, name) for name in ("beside", "drafter") if hasattr(proposer, name)]
    if hasattr(proposer, "runner"):
        yield proposer.runner
    for part in parts:
        yield from models_of(part)
