"""What a model's `generation_config` says of sampling, and what a reader is told of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from draftproof import LLM, SamplingParams


def of_model(llm: LLM) -> dict[str, Any]:
    """What of `SamplingParams` the model's own say differently, by name."""
    said, plain = SamplingParams.from_model(llm), SamplingParams()
    names = [field.name for field in fields(SamplingParams)]
    return {
        name: getattr(said, name) for name in names if getattr(said, name) != getattr(plain, name)
    }


def notes(llm: LLM, values: Mapping[str, Any], given: Collection[str], taken: bool) -> list[str]:
    """What to say of the model's values, if anything; those of `given` are the user's own.

    taken: whether the others are taken.
    """
    ignored = _listed(SamplingParams.ignored_of_model(llm))
    lines = [f"(not followed of the model's generation_config: {ignored})"] if ignored else []
    listed = _listed({name: value for name, value in values.items() if name not in given})
    if taken:
        first = [f"(as the model's generation_config says: {listed})"] if listed else []
        return first + lines
    if not listed:
        return []
    return [f"(not taken of the model's generation_config: {listed}; --model-defaults takes it)"]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
