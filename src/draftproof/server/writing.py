"""The two endpoints that write: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as Call
from starlette.responses import Response

from draftproof.intake import integers
from draftproof.request import Request
from draftproof.server import answers, grammars, sampled
from draftproof.server.answers import Wanted
from draftproof.server.bodies import Body, ChatBody, TextBody, Written, read
from draftproof.server.events import Events
from draftproof.server.front import Front, unknown_model
from draftproof.server.guards import body_of
from draftproof.server.refusals import Refused, bad
from draftproof.server.stream import Stream, finished

GONE = 499  # whom nobody reads: the client left


def routes(front: Front) -> APIRouter:
    """Both, in front of one model."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", openapi_extra=described(ChatBody))
    async def chat_completions(call: Call) -> Response:
        """The answer to a conversation, under the model's own template."""
        body = await taken(front, call, ChatBody)
        params = sampled.of_chat(body, front.defaults, front.settings.limits)
        prompts = [await front.ids(conversation(body))]
        return await answer(front, call, body, prompts, params, chat=True)

    @router.post("/v1/completions", openapi_extra=described(TextBody))
    async def completions(call: Call) -> Response:
        """What follows a text, or each of several."""
        body = await taken(front, call, TextBody)
        params = sampled.of_text(body, front.defaults, front.settings.limits)
        given = prompts_of(body)
        front.admission.check(len(given) * params.n)
        prompts = [await front.ids(prompt) for prompt in given]
        echoes = [echo(front, *each) for each in zip(given, prompts, strict=True) if body.echo]
        return await answer(front, call, body, prompts, params, chat=False, echoes=echoes)

    return router


def described(kind: type[Body]) -> dict[str, Any]:
    """The body in the API's description: it is read by `bodies.read`."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def taken(front: Front, call: Call, kind: Any) -> Any:
    """The body of a call, for the model that is here. Raises `Refused`."""
    front.admission.check(1)
    body = read(kind, await body_of(call, front.settings.limits))
    if body.model is not None and body.model not in front.settings.names:
        raise unknown_model(body.model)
    if getattr(body, "stream", False) and call.scope.get("http_version") == "1.0":
        raise bad("a stream needs HTTP/1.1: ask without stream", "stream")
    return body


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
        if (message.model_extra or {}).get("tool_calls"):
            raise bad("tools are not supported here yet: drop tool_calls", "messages")
    named = [message.model_dump(exclude_none=True) for message in body.messages]
    return [{"content": ""} | message for message in named]


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


def echo(front: Front, given: str | list[int], ids: Sequence[int]) -> str:
    """The text of a prompt."""
    if isinstance(given, str):
        return given
    tokenizer = front.llm.tokenizer
    return str(tokenizer.decode(integers(ids))) if tokenizer is not None else ""


async def answer(
    front: Front,
    call: Call,
    body: Written,
    prompts: Sequence[list[int]],
    params: Any,
    *,
    chat: bool,
    echoes: Sequence[str] = (),
) -> Response:
    """Let the texts of a call be written, and answer as its client wants it."""
    about = call.scope["draftproof"]
    salt = front.salt(about["key"], body.cache_salt)
    await front.compile(params.grammar, grammars.field(body))
    requests = front.requests(prompts, params, asked=body.length, rule=body.rule, salt=salt)
    wanted = Wanted(
        body=body,
        chat=chat,
        model=front.settings.names[0],
        pieces=front.pieces,
        drafter=front.drafter,
        echoes=echoes,
        silent=body.max_tokens == 0,
        by_token=front.settings.chunk == "token",
    )
    job = front.begin(requests, chat, {"id": about["id"], "path": call.url.path})
    about["logged"] = True  # when it ends, with what it took
    if body.stream:
        settings = front.settings
        return Stream(Events(job, wanted), settings.limits.stall, settings.keep_alive)
    if not await finished(job, call):
        return Response(status_code=GONE)
    failed(requests)
    return Response(msgspec.json.encode(answers.whole(job, wanted)), media_type="application/json")


def failed(requests: Sequence[Request]) -> None:
    """Raises `Refused` where nothing can be answered, because the server ends."""
    if all(each.finish_reason == "abort" and not each.stats.tokens for each in requests):
        raise Refused(
            503, "the server ended the request before anything was written", retry_after=1
        )
