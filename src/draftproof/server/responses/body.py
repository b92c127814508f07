"""The body of `/v1/responses`, and the chat that it asks for.

Input items become messages, `text.format` a response format; what a server without state cannot
follow is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.server.bodies import EFFORT, INSTEAD, ChatBody, Drawn, MaxNodes, checked
from draftproof.server.refusals import Refused, bad

PASSED = (*Drawn.model_fields, "chat_template_kwargs", "parallel_tool_calls")  # to the chat
NAMES = {  # of a chat's fields here
    "messages": "input",
    "response_format": "text",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
}
EMPTY: dict[str, tuple[Any, ...]] = {  # fields of which only these values can be followed
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "include": ([],),
    "reasoning": ({},),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "max_tool_calls": (),
    "stream_options": ({}, {"include_obfuscation": False}),
}
STATE = "nothing is remembered here: send the whole conversation as input"
WHY = {
    "previous_response_id": STATE,
    "conversation": STATE,
    "prompt": STATE,
    "reasoning": f"{EFFORT}, or drop it",
    "truncation": "a prompt that does not fit is refused: shorten it",
}
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class ResponsesBody(Drawn):
    """What is not given is the server's default."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    include: list[Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    stream_options: dict[str, Any] | None = None


def chat_of(body: ResponsesBody) -> ChatBody:
    """Raises `Refused`, by the names of this body."""
    for name, known in EMPTY.items():
        given = getattr(body, name)
        asks = isinstance(given, dict) and any(value is not None for value in given.values())
        if given is not None and given not in known and (asks or not isinstance(given, dict)):
            raise bad(f"{name} cannot be followed ({WHY.get(name, 'drop it')})", name)
    chat = {name: given for name in PASSED if (given := getattr(body, name)) is not None}
    if "speculative" in chat and isinstance(body.speculative, MaxNodes):
        chat["speculative"] = body.speculative.model_dump()
    chat["messages"] = list(messages_of(body))
    chat["max_completion_tokens"] = body.max_output_tokens
    chat["tools"] = [_tool(number, tool) for number, tool in enumerate(body.tools or ())]
    chat["tool_choice"] = _choice(body.tool_choice)
    chat["response_format"] = _format(body.text or {})
    try:
        return checked(ChatBody, chat)
    except Refused as error:
        raise renamed(error) from error


def renamed(error: Refused) -> Refused:
    """By the names of this body."""
    names = rf"\b({'|'.join(NAMES)})\b"
    said = re.sub(names, lambda found: NAMES[found[0]], error.message)
    param = NAMES.get(error.param or "", error.param)
    after = error.retry_after
    return Refused(error.status, said, param=param, code=error.code, retry_after=after)


def messages_of(body: ResponsesBody) -> Iterator[dict[str, Any]]:
    """A chat's messages. Raises `Refused`."""
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    given = body.input
    if not given:
        raise bad("input is empty: send text, or a list of items", "input")
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    last: dict[str, Any] = {}  # which an assistant's further items belong to
    for number, item in enumerate(given):
        made = _item(number, item)
        if made["role"] == last.get("role") == "assistant":
            last = _together(last, made)
            continue
        if last:
            yield last
        last = made
    yield last


def _item(number: int, item: Any) -> dict[str, Any]:
    """One item as a message, or a piece of an assistant's."""
    if not isinstance(item, dict):
        raise bad(f"input[{number}] must be an object", "input")
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in ITEMS:
        said = f"input[{number}] is of type {str(kind)[:40]!r}, and may be {', '.join(ITEMS)}"
        raise bad(said, "input")
    return ITEMS[kind](number, item)


def _together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two of an assistant's items as one message."""
    made = {**one}
    for name in ("content", "reasoning_content"):
        if name in other:
            made[name] = made.get(name, "") + other[name]
    if "tool_calls" in other:
        made["tool_calls"] = [*made.get("tool_calls", ()), *other["tool_calls"]]
    return made


def _text(number: int, content: Any) -> str:
    """The text of a content, which may come in parts."""
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in TEXTS or not isinstance(part.get("text"), str):
            raise bad(
                f"input[{number}] has a part of type {str(kind)[:40]!r}: only text can be read",
                "input",
            )
    return "".join(part["text"] for part in content)


def _message(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad(f"input[{number}] has no role: user, assistant, system or developer", "input")
    role = "system" if role == "developer" else role
    return {"role": role, "content": _text(number, item.get("content"))}


def _called(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    name, id = item.get("name"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(id, str):
        raise bad(f"input[{number}] is a call without name and call_id", "input")
    function = {"name": name, "arguments": item.get("arguments")}
    return {"role": "assistant", "tool_calls": [{"id": id, "function": function}]}


def _answered(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    id = item.get("call_id")
    if not isinstance(id, str):
        raise bad(f"input[{number}] answers a call, and has no call_id", "input")
    return {"role": "tool", "tool_call_id": id, "content": _text(number, item.get("output"))}


def _thought(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    thought = _text(number, item.get("content") or item.get("summary") or "")
    return {"role": "assistant", "reasoning_content": thought}


ITEMS = {
    "message": _message,
    "function_call": _called,
    "function_call_output": _answered,
    "reasoning": _thought,
}


def _tool(number: int, tool: Any) -> Any:
    """As chats have it."""
    kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
    if kind != "function":
        raise bad(
            f"tools[{number}] is of type {str(kind)[:40]!r}, and only functions can be called",
            "tools",
        )
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool.get(name) for name in names}}


def _choice(given: Any) -> Any:
    """As chats have it."""
    if isinstance(given, dict) and given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    return given


def _format(given: Mapping[str, Any]) -> Any:
    """As chats have it."""
    if unknown := [name for name in given if name not in ("format", "verbosity")]:
        raise bad(f"text.{unknown[0][:40]} cannot be followed: drop it", "text")
    if given.get("verbosity") not in (None, "medium"):
        raise bad(f"text.verbosity cannot be followed ({INSTEAD['verbosity']})", "text")
    form = given.get("format")
    if not isinstance(form, dict):
        return form
    if form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    return {"type": form.get("type")}
