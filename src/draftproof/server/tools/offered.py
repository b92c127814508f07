"""The tools of a body: what a client offers, which of them it wants called, and in which grammar.

What cannot be followed is refused by its name. Knows bodies and forms, not texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftproof.sampling import Grammar
from draftproof.sampling.grammars import MOST
from draftproof.server import grammars
from draftproof.server.bodies import ChatBody
from draftproof.server.refusals import bad
from draftproof.server.tools.forms import PLAIN, Form, Known, amid_text, written

TOOLS = 128
ANY = {"type": "object"}  # of a tool that is not strict
NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,64}")
CHOICES = ("auto", "none", "required")
AS_TEXT = (
    "tools: the model's chat template has no form of calls that is known here, so that calls come "
    "as text unless tool_choice requires one"
)
UNTOLD = (
    "tools: the chat template does not show tools to the model, which knows of none, so that what "
    "it calls is a guess: tell it of them in a system message"
)


@dataclass(frozen=True)
class Offered:
    """shown: what the template is told. schemas: of arguments, by name. form: in which calls are
    read; None: they are not. grammar: that binds an answer to calls, or, where it is free, what in
    it begins like one."""

    shown: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    form: Form | None = None
    grammar: Grammar | None = None
    free: bool = False
    warnings: tuple[str, ...] = ()


def of_body(body: ChatBody, known: Known) -> Offered:
    """Raises `Refused`."""
    choice, given = body.tool_choice or "auto", body.tools or []
    functions = _functions(given)
    name = _chosen(choice, functions)
    if not given or choice == "none":
        return Offered()
    if (binds := grammars.field(body)) is not None:
        raise bad(
            f"an answer calls tools or is bound by {binds}: drop one, or send tool_choice: none",
            binds,
        )
    shown = [{"type": "function", "function": each} for each in functions.values()]
    schemas = {each: _schema(function) for each, function in functions.items()}
    warnings: tuple[str, ...] = () if known.shows_tools else (UNTOLD,)
    if choice == "auto":
        warnings += () if known.form is not None else (AS_TEXT,)
        grammar = _amid_text(body, known, schemas)
        return Offered(shown, schemas, known.form, grammar, free=True, warnings=warnings)
    form = known.form or PLAIN
    wanted = schemas if name is None else {name: schemas[name]}
    several = name is None and body.parallel_tool_calls is not False
    grammar = _lark(written(known, form, wanted, several))
    return Offered(shown, schemas, form, grammar, warnings=warnings)


def _amid_text(body: ChatBody, known: Known, schemas: Mapping[str, Any]) -> Grammar | None:
    """Where the model may call or not: one call at most, or what `strict` promises of arguments."""
    strict = {tool["function"]["name"] for tool in body.tools or () if _strict(tool["function"])}
    if known.form is None:
        if strict:
            raise bad(
                f"the tool {min(strict)!r} is strict, and the model's chat template has no form of "
                "calls that could be bound: drop strict, or send tool_choice: required",
                "tools",
            )
        return None  # nothing is read as a call, and so there is one at most
    several = body.parallel_tool_calls is not False
    if several and not strict:
        return None
    wanted = {name: schemas[name] if name in strict else ANY for name in schemas}
    return _lark(amid_text(known, known.form, wanted, several))


def _strict(function: Mapping[str, Any]) -> bool:
    strict = function.get("strict") or False
    if not isinstance(strict, bool):
        raise bad(f"strict of the tool {function['name']!r} must be true or false", "tools")
    return strict


def _lark(text: str) -> Grammar:
    try:
        return Grammar.lark(text)
    except ValueError as error:
        raise bad(f"tools: {error}", "tools") from error


def _functions(given: list[Any]) -> dict[str, dict[str, Any]]:
    """Each function that is offered, by its name, with nothing but what a template shows."""
    if len(given) > TOOLS:
        raise bad(f"tools may hold {TOOLS} of them, and has {len(given)}", "tools")
    found: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(given):
        where = f"tools[{number}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        function = tool.get("function") if isinstance(tool, dict) else None
        if kind != "function" or not isinstance(function, dict):
            raise bad(
                f'{where} must be {{"type": "function", "function": {{"name": ...}}}}, the one '
                "kind there is",
                "tools",
            )
        name, about = function.get("name"), function.get("description")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise bad(f"{where} has no name: give it one of at most 64 letters, digits, _ and -",
                      "tools")  # fmt: skip
        if name in found:
            raise bad(f"{where} is named {name!r}, as one before it: give it another name", "tools")
        if about is not None and not isinstance(about, str):
            raise bad(f"the description of the tool {name!r} must be text", "tools")
        # Templates ask for both, and some fail where one is missing.
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        found[name] = {"name": name, "description": about or "", "parameters": parameters}
        _check(name, parameters)
    return found


def _check(name: str, parameters: Any) -> None:
    """The form of a schema; what else is wrong with it is seen where a grammar is made of it."""
    if not isinstance(parameters, dict):
        kind = type(parameters).__name__
        raise bad(f"the parameters of the tool {name!r} must be a schema, not {kind}", "tools")
    if parameters.get("type", "object") != "object":
        said = str(parameters["type"])[:40]
        raise bad(
            f"the parameters of the tool {name!r} must be a schema of type object, not {said!r}",
            "tools",
        )
    if (size := len(json.dumps(parameters))) > MOST:
        raise bad(
            f"the parameters of the tool {name!r} have {size:,} bytes, and at most {MOST:,} are "
            "taken",
            "tools",
        )


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **function["parameters"]}


def _chosen(choice: Any, functions: Mapping[str, Any]) -> str | None:
    """The one tool that has to be called, by name."""
    name = None
    if isinstance(choice, dict):
        inner = choice.get("function")
        name = inner.get("name") if isinstance(inner, dict) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise bad(
                'tool_choice must be {"type": "function", "function": {"name": ...}}, or one of '
                + ", ".join(CHOICES),
                "tool_choice",
            )
        if name not in functions:
            raise bad(f"tool_choice is {name[:80]!r}, and there is no such tool", "tool_choice")
    elif choice not in CHOICES:
        raise bad(
            f"tool_choice {choice[:40]!r} is none of {', '.join(CHOICES)}, nor names a function",
            "tool_choice",
        )
    if not functions and choice == "required":
        raise bad("tool_choice is required, and there are no tools: send some", "tool_choice")
    return name
