"""Engines by the name of a method."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from cases import PROMPTS, SAMPLED

TOKENS = 24


@cache
def target(name: str, dtype: torch.dtype) -> PreTrainedModel:
    untied = {"tie_word_embeddings": False} if name == "gemma3" else {}  # else it repeats itself
    return tiny.model(name, dtype=dtype, layers=2, **untied)


@cache
def draft(name: str, dtype: torch.dtype) -> PreTrainedModel:
    return tiny.relative(target(name, dtype))


def speculate(method: str, name: str, dtype: torch.dtype) -> Any:
    """What `LLM(speculate=)` is given for a method of METHODS."""
    ngram = dp.NGram(min_ngram=1)
    if method in ("none", "ngram"):
        return {"none": None, "ngram": ngram}[method]
    options = {"branch": 3 if method == "branches" else 1}
    model = dp.DraftModel(draft(name, dtype), 5, min_confidence=0.0, **options)
    return [ngram, model] if method == "both" else model


def engine(method: str, name: str, dtype: torch.dtype = torch.float64, **options: Any) -> dp.LLM:
    return dp.LLM(target(name, dtype), speculate=speculate(method, name, dtype), **options)


# --- greedy: transformers' own words ---


@cache
def generated(name: str, dtype: torch.dtype) -> list[list[int]]:
    """What transformers' generate(do_sample=False) writes after each of PROMPTS."""
    outputs = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = target(name, dtype).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=TOKENS,
        )
        outputs.append(made[0, len(prompt) :].tolist())
    return outputs


# --- sampling: plain decoding, one request at a time ---


def params_of(case: str, seed: int = 7, **changes: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": TOKENS, "seed": seed, **SAMPLED[case], **changes})
