"""Messages, as a chat template takes them."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from draftproof import templates
from draftproof.server.bodies import ChatBody, TokenizeBody
from draftproof.server.refusals import bad

CALL = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}'
SAID = ("system", "developer", "user", "tool")  # roles of which a message without text is a slip


def conversation(body: ChatBody | TokenizeBody, tokenizer: Any) -> Any:
    """Messages as a template takes them. Raises `Refused` for what is no text, or misspelt.

    tokenizer: whose template may know further roles; None knows nothing.
    """
    if not body.messages:
        raise bad("messages is empty: send at least one", "messages")
    named = [message.model_dump(exclude_none=True) for message in body.messages]
    try:
        templates.check_names(named, tokenizer)
    except ValueError as error:
        raise bad(str(error), "messages") from error
    for number, message in enumerate(body.messages):
        if message.content is None and message.role in SAID:
            who = f"messages[{number}] of the role {message.role!r}"
            raise bad(f"{who} has no content: give it text, or leave it out", "messages")
        for part in message.content if isinstance(message.content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise bad(
                    f"a content part of type {str(kind)[:40]!r} cannot be read here, only text is: "
                    'a part is {"type": "text", "text": "..."}',
                    "messages",
                )
    names: dict[str, str] = {}  # of the calls so far, by their ids
    return [{"content": ""} | _called(message, names) for message in named]


def _called(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A message as templates take it: a call's arguments are an object, an answer has its name."""
    calls = message.pop("tool_calls", None)
    if message["role"] == "tool" and (name := names.get(str(message.get("tool_call_id")))):
        return {"name": name} | message
    if not calls:
        return message
    if not isinstance(calls, list):
        raise bad(f"tool_calls must be a list of calls: {CALL}", "messages")
    return message | {"tool_calls": [_call(call, names) for call in calls]}


def _call(call: Any, names: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(function, dict):
        raise bad(f"a call in tool_calls must be {CALL}", "messages")
    given = function.get("arguments") or {}
    try:
        given = from_json(given) if isinstance(given, str) else given
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise bad(f"the arguments of the call of {name[:80]!r} are no JSON object", "messages")
    names[str(call.get("id"))] = name
    return {**call, "type": "function", "function": {"name": name, "arguments": given}}
