"""How one request samples, stops and reports: its parameters, checked when they are made.

Knows the ranges, not what the parameters do to a row of logits: that is `chain`.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from draftproof.foreign_names import explaining
from draftproof.sampling.defaults import ignored_of, options_of
from draftproof.sampling.grammars import Grammar


@explaining
@dataclass(frozen=True)
class SamplingParams:
    """How one request samples, stops and reports; names and ranges as in vLLM.

    `top_k` 0 or -1 is off. `max_tokens` None writes until the context (`llm.max_length`) is full; a
    text with more than fits ends there too, as "length". `stop` becomes a tuple of strings; None is
    none, of ids too. `speculate` False writes plainly, a method's name lets only that one draft;
    `max_draft_nodes` bounds the tokens drafted in a step. `prompt_logprobs` reports the best k of
    every token of the prompt too. `resume` has the tokens that a text was cut behind, of each of
    `n`, and what follows is what would have followed; it needs the `seed`, unless greedy.
    `grammar`, as `Grammar.json(schema)`, binds the output: what it forbids is out behind penalties
    and bans, before temperature. `prediction`, text or token ids, is what the output is thought to
    be like, and is drafted from; it changes no token. Raises `ValueError` when a value is out of
    range or of the wrong kind.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    max_tokens: int | None = 256
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None
    speculate: bool | str = True
    max_draft_nodes: int | None = None
    resume: Sequence[int] | Sequence[Sequence[int]] | None = None
    grammar: Grammar | None = None
    prediction: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        clean: dict[str, Any] = {
            name: _number(name, value, *bounds)
            for name, bounds in _RANGES.items()
            if (value := getattr(self, name)) is not None or name not in _MAY_BE_NONE
        }
        if clean["min_tokens"] > clean.get("max_tokens", sys.maxsize):
            raise ValueError(
                f"min_tokens is {self.min_tokens}, but must be <= max_tokens, {self.max_tokens}"
            )
        if "prompt_logprobs" in clean and self.max_tokens == 0:
            raise ValueError("prompt_logprobs need a step: max_tokens must be 1 or more")
        for name in ("bad_token_ids", "stop_token_ids"):
            given = getattr(self, name)
            clean[name] = _ids(name, () if given is None else given)
        if self.logit_bias is not None:
            clean["logit_bias"] = _biases(self.logit_bias)
        clean["stop"] = _stops(self.stop)
        clean["resume"] = _written(self.resume, int(clean["n"]))
        clean[PREDICTION] = _text_or_ids(PREDICTION, self.prediction)
        _check_kinds(self, clean["resume"])
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_model(cls, llm: Any, **changes: Any) -> Self:
        """What the model's own generation config asks for, with `changes`.

        llm: an `LLM`, a transformers model, or its `GenerationConfig`. Greedy unless the config
        says `do_sample`; without a `top_k` all tokens are in, where transformers takes the best 50.
        Its end-of-text tokens end every output anyway. `ignored_of_model` has what is not followed.
        Raises `ValueError`.
        """
        return cls(**{**options_of(*_generation_config(llm)), **changes})

    @staticmethod
    def ignored_of_model(llm: Any) -> dict[str, Any]:
        """What `from_model` does not follow: names and values of the model's generation config."""
        return ignored_of(*_generation_config(llm))

    @property
    def longest(self) -> int:
        """`max_tokens` as a number."""
        return sys.maxsize if self.max_tokens is None else self.max_tokens

    @functools.cached_property
    def adjusts(self) -> bool:
        """Whether a row can be changed by its history: only then does a node's matter."""
        return bool(self.penalises or self.logit_bias or self.bad_token_ids or self.min_tokens) or (
            self.grammar is not None
        )

    @functools.cached_property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @functools.cached_property
    def whole(self) -> bool:
        """Whether nothing of a row is cut off before a token is drawn from it."""
        return self.top_k <= 0 and self.min_p == 0 and self.top_p == 1

    @functools.cached_property
    def floor(self) -> float:
        """What min_p asks of a logit over the temperature, relative to the largest."""
        return math.log(self.min_p) if self.min_p > 0 else -math.inf


def _generation_config(llm: Any) -> tuple[Any, bool]:
    """And whether it is known to be an encoder-decoder's."""
    if hasattr(llm, "do_sample"):
        return llm, False
    model = llm.runner.model if hasattr(llm, "runner") else llm
    # A wrapped model may have none; a name or a dict is no model.
    if model is llm and not (hasattr(llm, "generation_config") or callable(llm)):
        raise ValueError(
            f"from_model reads a dp.LLM or a loaded transformers model, and no "
            f"{type(llm).__name__}: load it first"
        )
    encodes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    return getattr(model, "generation_config", None), encodes


_TINY = 5e-324  # the least float above 0
_LARGE = 1e30  # of what meets logits, which stay finite in float32
PREDICTION = "prediction"  # what drafts from it, among methods
_MOST = 10_000  # completions of a prompt, each of which is there before the first is written
_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("ignore_eos", bool, "True or False"),
    ("speculate", bool | str, "True, False or a method's name"),
    ("grammar", Grammar | None, "a dp.Grammar, as dp.Grammar.json(schema)"),
)
_MAY_BE_NONE = ("max_tokens", "seed", "logprobs", "prompt_logprobs", "max_draft_nodes")
_RANGES: dict[str, tuple[type, float, float, str]] = {
    "temperature": (float, 0, _LARGE, f"in [0, {_LARGE:g}]"),
    "top_k": (int, -1, math.inf, ">= 1, or 0 or -1 for off"),
    "top_p": (float, _TINY, 1, "in (0, 1]"),
    "min_p": (float, 0, 1, "in [0, 1]"),
    "repetition_penalty": (float, 1 / _LARGE, _LARGE, f"in [{1 / _LARGE:g}, {_LARGE:g}]"),
    "presence_penalty": (float, -2, 2, "in [-2, 2]"),
    "frequency_penalty": (float, -2, 2, "in [-2, 2]"),
    "min_tokens": (int, 0, math.inf, ">= 0"),
    "max_tokens": (int, 0, math.inf, ">= 0, or None for all that fits"),
    "seed": (int, 0, 2**64 - 1, "in [0, 2**64) or None"),
    "logprobs": (int, 0, 20, "in [0, 20] or None"),
    "prompt_logprobs": (int, 0, 20, "in [0, 20] or None"),
    "n": (int, 1, _MOST, f"in [1, {_MOST}]"),
    "max_draft_nodes": (int, 0, math.inf, ">= 0 or None"),
}


def _check_kinds(params: SamplingParams, written: Sequence[Any] | None) -> None:
    if params.temperature and params.seed is None and any(written or ()):
        raise ValueError("resume needs the seed that the text was begun with: give seed")
    for name, kind, allowed in _KINDS:
        if not isinstance(value := getattr(params, name), kind):
            raise ValueError(f"{name} is {value!r}, but must be {allowed}")
    if params.prediction is not None and params.speculate not in (True, PREDICTION):
        raise ValueError(
            f"prediction is only drafted from, which speculate={params.speculate!r} rules out: "
            "drop one of them"
        )


def _number(name: str, value: Any, kind: type, low: float, high: float, allowed: str) -> float:
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number: float = operator.index(value) if kind is int else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        noun = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} is {value!r}, but must be {noun} {allowed}")
    return number


def _biases(given: Any) -> dict[float, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f"logit_bias is {given!r}, but must map ids to numbers")
    allowed = f"in [-{_LARGE:g}, {_LARGE:g}]"
    biases = [_number("logit_bias", b, float, -_LARGE, _LARGE, allowed) for b in given.values()]
    return dict(zip(_ids("logit_bias", given), biases, strict=True))


def _stops(given: Any) -> tuple[str, ...]:
    stop = (given,) if isinstance(given, str) else () if given is None else given
    if not isinstance(stop, Sequence) or not all(isinstance(text, str) and text for text in stop):
        raise ValueError(f"stop is {given!r}, but must hold non-empty strings only")
    return tuple(stop)


def _written(values: Any, n: int) -> tuple[tuple[int, ...], ...] | None:
    """The tokens of each completion; those of one may be given as they are."""
    if values is None:
        return None
    if (
        not isinstance(values, Iterable)
        or isinstance(values, str | bytes)
        or not getattr(values, "ndim", 1)
    ):
        raise ValueError(f"resume is {values!r}, but must hold token ids")
    listed = list(values)
    nested = [isinstance(each, Sequence) and not isinstance(each, str) for each in listed]
    if not any(nested) and (listed or n == 1):
        listed = [listed]
    if len(listed) != n:
        raise ValueError(f"resume has the tokens of {len(listed)} completions, and n is {n}")
    try:
        return tuple(tuple(map(operator.index, each)) for each in listed)
    except TypeError:
        raise ValueError("resume must hold token ids: integers") from None


def _text_or_ids(name: str, value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _ids(name, value)


def _ids(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name} is {values!r:.80}, but must hold token ids")
    return tuple(_number(name, i, int, 0, 2**32 - 1, "in [0, 2**32): a token id") for i in values)
