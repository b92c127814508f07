"""From options to the names and values of `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftproof import Grammar, SamplingParams
from draftproof.cli import defaults
from draftproof.cli.files import text_of


def named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's arguments, those that are parameters of sampling."""
    known = {field.name for field in fields(SamplingParams)}
    sampling = {name: value for name, value in given.items() if name in known}
    sampling["logit_bias"] = _biases(given["logit_bias"] or ())
    sampling["max_tokens"] = defaults.longest(given["max_tokens"])
    for name in ("bad_token_ids", "stop", "stop_token_ids"):
        sampling[name] = tuple(given[name] or ())
    sampling["grammar"] = _grammar(given)
    if (file := given.get("prediction")) is not None:
        sampling["prediction"] = text_of(file, "prediction")
    return sampling


def of_clients(given: SimpleNamespace) -> dict[str, Any]:
    """What clients need not say: the temperature, and options that were given."""
    own = defaults.given(given.context)
    params = SamplingParams(**named(vars(given)))  # what is wrong is told before anything is loaded
    kept = own if given.model_defaults else own | {"temperature"}
    return {name: getattr(params, name) for name in kept & named(vars(given)).keys()}


def _grammar(given: Mapping[str, Any]) -> Grammar | None:
    """What the answer is bound to: a schema, an expression, a grammar, or texts."""
    asked = {name: given.get(name) for name in ("json_schema", "regex", "grammar", "choice")}
    found = {name: value for name, value in asked.items() if value not in (None, [])}
    if not found:
        return None
    if len(found) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in found)
        raise ValueError(f"an answer is bound to one thing, and not to {flags}: drop one")
    if (schema := found.get("json_schema")) is not None:
        inline = schema.lstrip().startswith("{")
        return Grammar.json(schema if inline else text_of(Path(schema), "schema"))
    if (rules := found.get("grammar")) is not None:
        make = Grammar.lark if rules.endswith(".lark") else Grammar.gbnf
        return make(rules if "::=" in rules else text_of(Path(rules), "grammar"))
    if (pattern := found.get("regex")) is not None:
        return Grammar.regex(pattern)
    return Grammar.choice(found["choice"])


def _biases(pairs: Sequence[str]) -> dict[int, float] | None:
    biases: dict[int, float] = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            fresh = int(token), float(value)
        except ValueError:
            raise ValueError(f"logit bias {pair!r} is not ID=VALUE, for example 11=-2.5") from None
        if fresh[0] in biases:
            raise ValueError(f"logit bias of token {fresh[0]} is given twice: drop one")
        biases[fresh[0]] = fresh[1]
    return biases or None
