"""What users pass as prompts and parameters, made into lists; refusals in one sentence."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from draftproof.sampling import SamplingParams

Prompt = str | Sequence[int]


def as_list(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) and not hasattr(prompts, "tolist"):
        raise ValueError(f"prompts are text, token ids or a list of either, not {type(prompts)}")
    listed = list(prompts.tolist() if hasattr(prompts, "tolist") else prompts)
    if listed and isinstance(listed[0], Integral):
        return [listed]
    return listed


def integers(prompt: Any) -> list[int]:
    """The token ids of a prompt that is not text."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise ValueError("a prompt is text or a list of integer token ids") from None


def params_of(params: Any, count: int) -> list[SamplingParams]:
    """Sampling parameters for each of `count` prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ValueError(
            "params are SamplingParams, one for all prompts or a list with one for each"
        )
    if len(params) != count:
        raise ValueError(
            f"{len(params)} sampling parameters for {count} prompts: give one, or as many"
        )
    return list(params)
