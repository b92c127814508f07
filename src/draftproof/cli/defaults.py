"""What a model's `generation_config` says of sampling, and what a reader is told of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import typer

from draftproof import LLM, SamplingParams

_NAMES = [field.name for field in fields(SamplingParams)]


def given(context: typer.Context, names: Collection[str] = _NAMES) -> set[str]:
    """Those of these options, by default of sampling, that the user gave."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name for name, source in sources.items() if source and source.name != "DEFAULT"}


def quicken(arguments: SimpleNamespace, less: Mapping[str, int]) -> None:
    """With --quick, what the user did not give is what `less` says."""
    if arguments.quick:
        own = given(arguments.context, less)
        vars(arguments).update((name, few) for name, few in less.items() if name not in own)


def longest(max_tokens: int) -> int | None:
    """Of --max-tokens: -1 is all that fit. Raises `ValueError` for what lies below."""
    if max_tokens < -1:
        raise ValueError(f"--max-tokens is {max_tokens}, but must be >= 0, or -1 for all that fit")
    return None if max_tokens == -1 else max_tokens


def idle(params: SamplingParams, own: Collection[str]) -> list[str]:
    """What is told of options that a user gave, and that change nothing or not what was meant."""
    lines = []
    greedy = [name for name in ("top_k", "top_p", "min_p") if name in own]
    if greedy and params.temperature == 0:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in greedy)
        lines.append(f"(temperature 0 is greedy with {flags} or without: add --temperature 0.7)")
    if escaped := [text for text in params.stop or () if "\\n" in text]:
        lines.append(
            f"(--stop '{escaped[0]}' has a backslash and an n: a new line is written $'\\n')"
        )
    return lines


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
