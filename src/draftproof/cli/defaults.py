"""What a model's `generation_config` says of sampling, as options of a command."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from draftproof import LLM

TAKEN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def of_model(llm: LLM) -> dict[str, Any]:
    """Values for `SamplingParams`; none of drawing where the model's authors chose not to draw."""
    config = llm.runner.model.generation_config
    if config is None:
        return {}
    said = config.to_diff_dict()
    values = {name: said[name] for name in TAKEN if said.get(name) is not None}
    if said.get("do_sample"):
        return {"temperature": 1.0} | values
    return {name: value for name, value in values.items() if name == "repetition_penalty"}


def note(values: dict[str, Any], given: Collection[str], taken: bool) -> str | None:
    """One line for whoever reads the output, if there is anything to say.

    given: what the user gave, which stands. taken: whether the model's values are taken.
    """
    rest = {name: value for name, value in values.items() if name not in given}
    listed = ", ".join(f"{name}={value:g}" for name, value in rest.items())
    if not rest:
        return None
    if taken:
        return f"as the model's generation_config says: {listed}"
    return f"the model's generation_config says {listed}: --model-defaults takes that"
