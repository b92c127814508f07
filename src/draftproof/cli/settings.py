"""Sampling parameters as a user changes them in words: `top_p 0.9`, `seed none`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from draftproof.sampling import SamplingParams

KINDS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "min_tokens": int,
    "seed": int,
    "stop": str,
}
OTHER_NAMES = {
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
}
COMMANDS = ("system", "method")
NOTHING: dict[str, Any] = {
    "max_tokens": None,
    "seed": None,
    "stop": (),
}  # what "none" is for those that know it


def changed(params: SamplingParams, words: str) -> SamplingParams:
    """With one value replaced: "NAME VALUE" or "NAME=VALUE". Raises `ValueError`."""
    words = words.removeprefix("parameter ")  # as Ollama has it
    name, _, value = words.replace("=", " ", 1).partition(" ")
    name, value = name.lower().replace("-", "_"), value.strip()
    if name in COMMANDS:
        raise ValueError(f"{name} has a command of its own: /{name} {value}".rstrip())
    name = OTHER_NAMES.get(name, name)
    if name == "do_sample":
        raise ValueError("a temperature above 0 samples, 0 is greedy: /set temperature 0.7")
    if name not in KINDS:
        close = get_close_matches(name, KINDS, 1, 0.5)
        hint = f"did you mean {close[0]}? There are" if close else "there are"
        raise ValueError(f"nothing is called {name!r}: {hint} {', '.join(KINDS)}")
    if not value:
        raise ValueError(f"{name} needs a value: /set {name} {getattr(params, name)}")
    if name in NOTHING and (value.lower() == "none" or (name, value) == ("max_tokens", "-1")):
        return replace(params, **{name: NOTHING[name]})
    try:
        read = KINDS[name](value)
    except ValueError:
        raise ValueError(f"{name} is a number, and {value!r} is none") from None
    return replace(params, **{name: read})


def listing(params: SamplingParams) -> str:
    """One line: the values that matter, by name."""
    default = SamplingParams()
    shown = {name: getattr(params, name) for name in KINDS}
    always = ("temperature", "max_tokens")
    parts = [
        f"{name} {_written(value)}"
        for name, value in shown.items()
        if name in always or value != getattr(default, name)
    ]
    return ", ".join(parts)


def _written(value: Any) -> str:
    """As `changed` reads it."""
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return "none" if value is None else str(value)
