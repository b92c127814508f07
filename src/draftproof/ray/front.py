"""The endpoints of `draftproof serve` without a model: who is let in, which replica is asked, and
what becomes of an answer whose replica is lost. Knows no Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.requests import Request as Call
from starlette.responses import Response
from starlette.types import ASGIApp

from draftproof.ray import affinity, gathered
from draftproof.ray.engine import Answer
from draftproof.ray.relay import Relay
from draftproof.ray.surviving import Engines, Lost, Surviving, tried
from draftproof.server import app, page
from draftproof.server.bodies import Body, ChatBody, DetokenizeBody, TextBody, TokenizeBody, read
from draftproof.server.front import beside
from draftproof.server.guards import body_of
from draftproof.server.messages import conversation
from draftproof.server.prompts import prompts_of
from draftproof.server.refusals import Refused, bad, unknown_model
from draftproof.server.responses.body import ResponsesBody, chat_of, renamed
from draftproof.server.settings import READY, Settings
from draftproof.server.stream import Stream, left
from draftproof.server.telling import CONTENT, MODEL, told
from draftproof.server.writing import GONE, RESUME, described

HEALTH_SECONDS = 5.0  # that an engine has to say how it is
HOP = frozenset({b"content-length", b"connection", b"x-request-id"})  # of one connection alone
PAUSES = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

T = TypeVar("T")


class Front:
    """In front of all engines.

    tokenizer: the model's, for the beginnings of prompts; None: every call goes anywhere. session:
    the header by which clients name what belongs together.
    """

    def __init__(
        self, settings: Settings, engines: Engines, tokenizer: Any, session: str = "x-session-id"
    ) -> None:
        self.settings, self.engines, self.tokenizer = settings, engines, tokenizer
        self.session = session
        self._registry = CollectorRegistry(auto_describe=True)
        self._continued = Counter(
            "draftproof:streams_continued", "At another engine.", registry=self._registry
        )
        self._pauses = Histogram(
            "draftproof:stream_pause_seconds",
            "Of streams, until another engine had them.",
            buckets=PAUSES,
            registry=self._registry,
        )

    def app(self) -> ASGIApp:
        """All of it."""
        each = self._writing(), self._asking(), self._telling(), page.routes()
        return app.around(each, self.settings)

    async def answer(self, call: Call, kind: type[Body]) -> Response:
        """A call that writes. Raises `Refused`, and `Left`."""
        raw = await body_of(call, self.settings.limits)
        body: Any = read(kind, raw)
        self._check_name(body)
        key = await self._key(call, body)
        if not body.stream:
            return await self.whole(call, raw, key)
        if call.scope.get("http_version") == "1.0":
            raise bad("a stream needs HTTP/1.1: ask without stream", "stream")
        about = call.scope["draftproof"]
        asked = {
            "chat": kind is not TextBody,
            "items": kind is ResponsesBody,
            "body": raw,
            "key": about["key"],
            "id": about["id"],
            "path": call.url.path,
            "told": call.headers.get(RESUME, "") == "1",
        }
        stream = Surviving(self.engines, asked, key, self._paused)
        try:
            await stays(call, stream.begin())
        except BaseException:
            await stream.close()
            raise
        relay = Relay(stream.parts(), stream.close, stream.ending)
        return Stream(relay, self.settings.limits.stall, self.settings.keep_alive)

    async def whole(self, call: Call, raw: bytes, key: str) -> Response:
        """What an engine answers; another one where it is lost, from the beginning."""
        asked = {
            "method": call.method,
            "path": call.url.path,
            # Pages are let in here: an engine knows of none.
            "headers": [pair for pair in call.headers.raw if pair[0] != b"origin"],
            "body": raw,
        }

        async def ask() -> Answer:
            if (found := await self.engines.ask(asked, key)) is None:
                raise Lost("its engine has failed")
            return found

        status, headers, body = await stays(call, tried(ask))
        response = Response(body, status)
        response.raw_headers += [pair for pair in headers if pair[0].lower() not in HOP]
        return response

    def _writing(self) -> APIRouter:
        router = APIRouter(tags=["OpenAI"])

        @router.post(CHATS, openapi_extra=described(ChatBody))
        async def chat_completions(call: Call) -> Response:
            """The answer to a conversation, under the model's own template."""
            return await unless_left(self.answer(call, ChatBody))

        @router.post(RESPONSES, openapi_extra=described(ResponsesBody))
        async def responses(call: Call) -> Response:
            """A chat in the shape of OpenAI's newer endpoint; nothing is remembered."""
            return await unless_left(self.answer(call, ResponsesBody))

        @router.post(TEXTS, openapi_extra=described(TextBody))
        async def completions(call: Call) -> Response:
            """What follows a text, or each of several."""
            return await unless_left(self.answer(call, TextBody))

        return router

    def _asking(self) -> APIRouter:
        """What any engine answers alike."""
        router = APIRouter()

        async def forwarded(call: Call) -> Response:
            raw = await body_of(call, self.settings.limits) if call.method == "POST" else b""
            key = affinity.key("", call.url.path, ())
            return await unless_left(self.whole(call, raw, key))

        bodies: dict[str, type[Body]] = {"/tokenize": TokenizeBody, "/detokenize": DetokenizeBody}
        for path, kind in bodies.items():
            extra = described(kind)
            router.add_api_route(path, forwarded, methods=["POST"], openapi_extra=extra)
        for path in ("/v1/models", MODEL, "/props", "/tokenizer_info"):
            router.add_api_route(path, forwarded, methods=["GET"])
        return router

    def _telling(self) -> APIRouter:
        """What is of all engines."""
        router = APIRouter(tags=["server"])

        async def health() -> Response:
            """200 while an engine takes requests, else 503 with the reason."""
            try:
                async with asyncio.timeout(HEALTH_SECONDS):
                    states = await self.engines.every("state")
            except (Lost, TimeoutError):
                states = []
            if READY in states:
                return told({"status": "ok"})
            return told({"status": states[0] if states else "no engine"}, 503)

        for path in ("/health", "/ready"):
            router.add_api_route(path, health, methods=["GET", "HEAD"], include_in_schema=False)

        @router.get("/load")
        async def load() -> Response:
            each = await self._every("load")
            running = sum(int(one["running"] + one["waiting"]) for one in each)
            return told({"server_load": running})

        @router.get("/version")
        async def which() -> Response:
            return told({"version": version("draftproof")})

        @router.get("/metrics")
        async def metrics() -> Response:
            own = generate_latest(self._registry)
            return Response(
                own + gathered.one(await self._every("metrics")), headers={"Content-Type": CONTENT}
            )

        return router

    async def _every(self, name: str) -> list[Any]:
        try:
            return await self.engines.every(name)
        except Lost as lost:
            raise Refused(503, f"an engine could not be reached ({lost})", retry_after=1) from lost

    def _check_name(self, body: Any) -> None:
        if body.model is not None and body.model not in self.settings.names:
            raise unknown_model(body.model, self.settings.names)

    async def _key(self, call: Call, body: Any) -> str:
        """See `affinity.key`. Raises `Refused` where no prompt is asked about."""
        if isinstance(body, ResponsesBody):
            try:
                return await self._key(call, chat_of(body))
            except Refused as error:
                raise renamed(error) from error
        chat = isinstance(body, ChatBody)
        parts = ["" if self.settings.share else call.scope["draftproof"]["key"], body.cache_salt]
        session = call.headers.get(self.session, "")[:256]
        first: list[int] = []
        if not session and self.tokenizer is not None:
            prompt = conversation(body, self.tokenizer) if chat else prompts_of(body)[0]
            size = len(repr(prompt)) if chat else min(len(prompt), affinity.CHARACTERS)
            first = await beside(size, lambda: affinity.beginning(self.tokenizer, prompt))
        return affinity.key(repr(parts), session, first) if session or first else ""

    def _paused(self, seconds: float) -> None:
        self._continued.inc()
        self._pauses.observe(seconds)


async def unless_left(answer: Awaitable[Response]) -> Response:
    try:
        return await answer
    except Left:
        return Response(status_code=GONE)


class Left(Exception):
    """The client is gone."""


async def stays(call: Call, made: Awaitable[T]) -> T:
    """What `made` gives. Raises `Left` if the client leaves before, which cancels it."""
    leaves = asyncio.ensure_future(left(call.receive))
    gives = asyncio.ensure_future(made)
    try:
        await asyncio.wait({leaves, gives}, return_when=asyncio.FIRST_COMPLETED)
        if not gives.done():
            raise Left
        return gives.result()
    finally:
        leaves.cancel()
        gives.cancel()
        await asyncio.wait({gives})  # what it goes over may be closed behind this
