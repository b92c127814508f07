"""What a model's `generation_config` says of sampling, and what a reader is told of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import typer

from draftproof import LLM, SamplingParams

_NAMES = [field.name for field in fields(SamplingParams)]


def given(context: typer.Context) -> set[str]:
    """The sampling options that the user gave."""
    sources = {name: context.get_parameter_source(name) for name in _NAMES}
    return {name for name, source in sources.items() if source and source.name != "DEFAULT"}


def completed(
    llm: LLM, params: SamplingParams, own: Collection[str], taken: bool
) -> tuple[SamplingParams, list[str]]:
    """`params` with the model's values for all but `own`, and the lines that say so.

    taken: False leaves `params` alone, and the lines say what was not taken.
    """
    said, plain = SamplingParams.from_model(llm), SamplingParams()
    values = {
        name: getattr(said, name)
        for name in _NAMES
        if name not in own and getattr(said, name) != getattr(plain, name)
    }
    ignored = _listed(SamplingParams.ignored_of_model(llm))
    lines = [f"(not followed of the model's generation_config: {ignored})"] if ignored else []
    listed = _listed(values)
    if taken:
        first = [f"(as the model's generation_config says: {listed})"] if listed else []
        return replace(params, **values), first + lines
    if not listed:
        return params, []
    return params, [
        f"(not taken of the model's generation_config: {listed}; --model-defaults takes it)"
    ]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
