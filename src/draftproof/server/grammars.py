"""What an answer is bound to, as clients of OpenAI, vLLM and llama.cpp write it.

Knows bodies, not how a grammar is compiled or followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftproof.sampling import Grammar
from draftproof.server.bodies import Written
from draftproof.server.refusals import bad


def field(body: Written) -> str | None:
    """The name under which a body binds its answer. Raises `Refused` where there are several."""
    found = [name for name in FIELDS if getattr(body, name) is not None]
    if "response_format" in found and _kind(body.response_format) == "text":
        found.remove("response_format")
    if len(found) > 1:
        raise bad(f"an answer is bound by one of {' and '.join(found)}: drop one", found[1])
    return found[0] if found else None


def of_body(body: Written) -> Grammar | None:
    """Raises `Refused`."""
    if (name := field(body)) is None:
        return None
    try:
        return FIELDS[name](getattr(body, name))
    except ValueError as error:
        raise bad(f"{name}: {error}", name) from error


def _kind(given: Mapping[str, Any] | None) -> Any:
    return None if given is None else given.get("type")


def _response_format(given: Mapping[str, Any]) -> Grammar:
    """OpenAI's; llama.cpp has a schema beside the type."""
    kind, inner = _kind(given), given.get("json_schema")
    if kind == "json_object":
        schema = given.get("schema")
        return Grammar.any_json() if schema is None else Grammar.json(schema)
    if kind != "json_schema":
        raise ValueError(f"type {str(kind)[:40]!r} is none of text, json_object and json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else given.get("schema")
    if schema is None:
        raise ValueError("there is no json_schema.schema in it")
    return Grammar.json(schema)


def _structured(given: Mapping[str, Any]) -> Grammar:
    """vLLM's object of which one field is used."""
    asked = {name: value for name, value in given.items() if value not in (None, False)}
    if len(asked) != 1 or (name := next(iter(asked))) not in STRUCTURED:
        names = ", ".join(str(each)[:40] for each in asked) or "nothing"
        raise ValueError(f"it must have one of {', '.join(STRUCTURED)}, and has {names}")
    return STRUCTURED[name](asked[name])


def _written(given: Any) -> Grammar:
    """llama.cpp's notation where it looks like that, else Lark's."""
    return Grammar.gbnf(given) if "::=" in str(given) else Grammar.lark(given)


STRUCTURED: dict[str, Callable[[Any], Grammar]] = {
    "json": Grammar.json,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": _written,
    "json_object": lambda given: Grammar.any_json(),
}
FIELDS: dict[str, Callable[[Any], Grammar]] = {
    "response_format": _response_format,
    "structured_outputs": _structured,
    "guided_json": Grammar.json,
    "guided_regex": Grammar.regex,
    "guided_choice": Grammar.choice,
    "guided_grammar": _written,
    "json_schema": Grammar.json,
    "grammar": _written,
}
