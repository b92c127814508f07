"""The endpoints that write: `/v1/chat/completions`, `/v1/responses` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as Call
from starlette.responses import Response

from draftproof.request import Request
from draftproof.server import answers, calls
from draftproof.server.bodies import Body, ChatBody, TextBody, Written, read
from draftproof.server.calls import Asked
from draftproof.server.events import Events
from draftproof.server.front import Front
from draftproof.server.guards import body_of
from draftproof.server.refusals import Refused, bad, unknown_model
from draftproof.server.responses.body import ResponsesBody, chat_of, renamed
from draftproof.server.responses.output import Answer
from draftproof.server.stream import Stream, finished

RESUME = "x-draftproof-resume"  # the header by which chunks tell what resumption needs
GONE = 499  # whom nobody reads: the client left


def routes(front: Front) -> APIRouter:
    """All of them, in front of one model."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", openapi_extra=described(ChatBody))
    async def chat_completions(call: Call) -> Response:
        """The answer to a conversation, under the model's own template."""
        body = await taken(front, call, ChatBody)
        return await answer(front, call, await calls.of_chat(front, body))

    @router.post("/v1/responses", openapi_extra=described(ResponsesBody))
    async def responses(call: Call) -> Response:
        """A chat in the shape of OpenAI's newer endpoint; nothing is remembered."""
        given = await taken(front, call, ResponsesBody)
        try:
            asked = await calls.of_chat(front, chat_of(given), apart=True)
            return await answer(front, call, asked, given)
        except Refused as error:
            raise renamed(error) from error

    @router.post("/v1/completions", openapi_extra=described(TextBody))
    async def completions(call: Call) -> Response:
        """What follows a text, or each of several."""
        body = await taken(front, call, TextBody)
        return await answer(front, call, await calls.of_text(front, body))

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
        raise unknown_model(body.model, front.settings.names)
    if getattr(body, "stream", False) and call.scope.get("http_version") == "1.0":
        raise bad("a stream needs HTTP/1.1: ask without stream", "stream")
    return body


async def answer(
    front: Front, call: Call, asked: Asked, asked_as: ResponsesBody | None = None
) -> Response:
    """Let the texts of a call be written, and answer as its client wants it.

    asked_as: the body that a chat's was made of, in whose shape the answer comes.
    """
    about, body = call.scope["draftproof"], asked.body
    told = bool(body.speculative_details) or call.headers.get(RESUME, "") == "1"
    fingerprint = asked.fingerprint(front) if told or body.resume is not None else ""
    check_resume(body, fingerprint, len(asked.prompts))
    requests = asked.requests(front, about["key"], asked.prompts, asked.params)
    wanted = asked.wanted(front, fingerprint if told else "")
    job = front.begin(requests, asked.chat, {"id": about["id"], "path": call.url.path})
    about["logged"] = True  # when it ends, with what it took
    if body.stream:
        settings = front.settings
        events = Events(job, wanted) if asked_as is None else Answer(job, wanted, asked_as)
        return Stream(events, settings.limits.stall, settings.keep_alive)
    if not await finished(job, call):
        return Response(status_code=GONE)
    failed(requests)
    if asked_as is None:
        whole = answers.whole(job, wanted)
    else:
        whole = Answer(job, wanted, asked_as).whole()
    return Response(msgspec.json.encode(whole), media_type="application/json")


def check_resume(body: Written, fingerprint: str, prompts: int) -> None:
    """Raises `Refused` where what is given was not written for this call, on such a model."""
    if body.resume is None:
        return
    if prompts > 1:
        raise bad(f"resume is of one prompt, and there are {prompts}: send each alone", "resume")
    if body.resume.fingerprint is not None:
        check_fingerprint(body.resume.fingerprint, fingerprint)


def check_fingerprint(given: str, here: str) -> None:
    """Raises `Refused` where a text that was begun under the one cannot go on under the other."""
    if given == here:
        return
    if given.partition("-")[0] != here.partition("-")[0]:
        raise bad(
            "resume cannot go on here: the text was begun with other weights, another precision, "
            f"other kernels or another tokenizer ({given[:80]!r}, and here it is {here!r})",
            "resume",
        )
    raise bad(
        "resume cannot go on: the text was begun with another prompt or other parameters, and "
        "what follows would be another text: send the same body",
        "resume",
    )


def failed(requests: Sequence[Request]) -> None:
    """Raises `Refused` where nothing can be answered, because the server ends."""
    if all(each.finish_reason == "abort" and not each.stats.tokens for each in requests):
        raise Refused(
            503, "the server ended the request before anything was written", retry_after=1
        )
