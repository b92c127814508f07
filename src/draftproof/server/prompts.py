"""What a body asks about: messages or prompts, their token ids, and the requests for them.

Knows neither HTTP nor who is let in: the server's calls and the lines of a batch are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from draftproof.asked import integers
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.sampling import SamplingParams
from draftproof.server.bodies import ChatBody, TextBody
from draftproof.server.refusals import bad, of_value

CALL = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}'


def conversation(body: ChatBody) -> Any:
    """Messages as a template takes them. Raises `Refused` for what is no text."""
    if not body.messages:
        raise bad("messages is empty: send at least one", "messages")
    for message in body.messages:
        for part in message.content if isinstance(message.content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise bad(
                    f"a content part of type {str(kind)[:40]!r} cannot be read here, only text is: "
                    'a part is {"type": "text", "text": "..."}',
                    "messages",
                )
    named = [message.model_dump(exclude_none=True) for message in body.messages]
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


def prompts_of(body: TextBody) -> list[str | list[int]]:
    """One prompt or several. Raises `Refused`."""
    given: Any = body.prompt
    if given is None:
        raise bad("there is no prompt: send text, token ids, or a list of either", "prompt")
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise bad("the list of prompts is empty: send at least one", "prompt")
    return list(given)


def echo(tokenizer: Any, given: str | list[int], ids: Sequence[int]) -> str:
    """The text of a prompt."""
    if isinstance(given, str):
        return given
    return str(tokenizer.decode(integers(ids))) if tokenizer is not None else ""


def encoded(llm: LLM, prompt: Any, template: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids of a prompt that fits. template: see `chat_ids`. Raises `Refused`."""
    try:
        if template:
            prompt = llm.intake.chat_ids(prompt, template)
        return llm.intake.ids(prompt)
    except ValueError as error:
        raise bad(str(error), "prompt") from error


def begun(llm: LLM, given: str | Sequence[int] | None) -> list[int] | None:
    """What texts of an encoder-decoder go on from; None: a decoder's do from their prompts.

    given: what stands there behind the start token. Raises `Refused`.
    """
    if given is None and not llm.runner.encodes:
        return None
    try:
        return llm.intake.begins([], given)
    except ValueError as error:
        raise bad(str(error), "decoder_prompt") from error


def check_room(
    llm: LLM, prompts: Sequence[Sequence[int]], start: Sequence[int] | None, asked: int | None
) -> None:
    """Raises `Refused` where what is gone on from and so many tokens behind it do not fit.

    start: see `begun`. asked: None where a call wants no number of tokens.
    """
    longest = max(map(len, prompts if start is None else [start]))
    if asked is not None and longest + asked > llm.max_length:
        what = "prompt" if start is None else "decoder's prompt"
        raise bad(
            f"the {what} has {longest} tokens and max_tokens is {asked}, and the context ends "
            f"at {llm.max_length}: shorten one of them",
            "max_tokens",
        )


def prepared(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, **more: Any
) -> list[Request]:
    """Requests that do not run yet: those of the first prompt first. Raises `Refused`.

    more: as `LLM.prepare` takes it.
    """
    try:
        return [request for ids in prompts for request in llm.prepare(ids, params, **more)]
    except ValueError as error:
        raise of_value(error) from error
