"""A front and its engines in one event loop, without Ray; engines are lost when a test says so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import draftproof as dp
import serving
from draftproof.ray.engine import Answer, Engine
from draftproof.ray.front import Front
from draftproof.ray.surviving import Lost
from draftproof.server.settings import Settings

T = TypeVar("T")
STEP = 0.003  # seconds
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USUAL: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 11, "stream": True}
USUAL |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
Opens = Sequence[Callable[[], dp.LLM]]
PAIR: Opens = (serving.llm, lambda: serving.llm(speculate="ngram"))  # which draft otherwise


class Lossy:
    """`surviving.Engines` over engines of this process, in turn.

    parts: how many come of each stream in turn until its engine is lost; None, or behind the last:
    none is. 0: before the head.
    """

    def __init__(self, engines: Sequence[Engine], parts: Sequence[int | None] = ()) -> None:
        self.engines, self.parts = engines, list(parts)
        self.calls: list[Mapping[str, Any]] = []
        self.keys: list[str] = []
        self.came = 0  # parts, of all streams

    async def stream(self, call: Mapping[str, Any], key: str) -> AsyncIterator[Any]:
        engine = self.engines[len(self.calls) % len(self.engines)]
        left = self.parts[len(self.calls)] if len(self.calls) < len(self.parts) else None
        self.calls.append(call)
        self.keys.append(key)
        stream = engine.stream(call)
        try:
            if left == 0:
                raise Lost("killed")
            async for part in stream:
                yield part
                self.came += 1
                if left is not None:
                    left -= 1
                    if not left:
                        raise Lost("killed")
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def ask(self, call: Mapping[str, Any], key: str) -> Answer | None:
        engine = self.engines[len(self.calls) % len(self.engines)]
        left = self.parts[len(self.calls)] if len(self.calls) < len(self.parts) else None
        self.calls.append(call)
        self.keys.append(key)
        if left is not None:
            raise Lost("killed")
        return await engine.ask(call)

    async def every(self, name: str) -> list[Any]:
        return [getattr(engine, name)() for engine in self.engines]


class Asked:
    """An answer as a client gets it."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[str, str](), b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


async def ask(
    app: Any,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    left: asyncio.Event | None = None,
) -> Asked:
    """A call of an ASGI application; with a body a POST. left: set when the client leaves."""
    raw = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
    }
    bodies, leaves, found = [raw], left or asyncio.Event(), Asked()

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            found.body += message["body"]

    await app(scope, receive, send)
    return found


@asynccontextmanager
async def engines(*opens: Callable[[], dp.LLM], **settings: Any) -> AsyncIterator[list[Engine]]:
    """One for each, loaded one after the other, as they share a model.

    A step takes a while, in which its part is told: streams have many, however busy the machine is.
    """
    made: list[Engine] = []
    try:
        for open in opens:
            made.append(Engine(Settings(names=(serving.NAME,), **settings), open))
            await made[-1].loaded()
            _slow(made[-1].front.llm.engine)
        yield made
    finally:
        for each in made:
            await each.close()


def _slow(engine: Any) -> None:
    step = engine.step

    def slow() -> Any:
        time.sleep(STEP)
        return step()

    engine.step = slow


def front(lossy: Lossy, **settings: Any) -> Front:
    tokenizer = lossy.engines[0].front.llm.tokenizer
    return Front(Settings(names=(serving.NAME,), log=False, **settings), lossy, tokenizer)


def run(made: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(made)
