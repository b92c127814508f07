"""One LLM without and one with drafts, over one model that writes letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import draftproof as dp
from spelling import model, tokenizer

TEXT = "def f(x):\n    return x\n"


def llm(**options: Any) -> dp.LLM:
    return dp.LLM(model(), **{"tokenizer": tokenizer(), "speculate": None, **options})


@pytest.fixture(scope="module")
def plain_llm() -> Iterator[dp.LLM]:
    with llm() as made:
        yield made


@pytest.fixture(scope="module")
def drafted_llm() -> Iterator[dp.LLM]:
    """Drafts that are always right: the target itself."""
    with llm(speculate=dp.DraftModel(model(), 7, min_confidence=0.0), max_batch=3) as made:
        yield made


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"temperature": 1.0, "max_tokens": 30, "seed": 3, **options})


def refused(call: Any, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word.lower() in message.lower(), message
    assert "\n" not in message and 10 < len(message) < 500, message
