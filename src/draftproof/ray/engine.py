"""One replica's engine: what the fronts call over a handle. Knows no Ray.

A stream's parts are plain dictionaries and tuples, so that a front of another version can read
them: first a `head` or what is `refused`, then (bytes, tokens, ends, whether that is all).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Message

from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.server import app, calls, writing
from draftproof.server.bodies import ChatBody, TextBody, read
from draftproof.server.calls import Asked
from draftproof.server.events import Choice, Events
from draftproof.server.front import Front
from draftproof.server.job import Job
from draftproof.server.refusals import Refused, unknown_model
from draftproof.server.responses import output
from draftproof.server.responses.body import ResponsesBody, chat_of, renamed
from draftproof.server.settings import DEAD, Settings

PATIENCE = 5.0  # seconds for the step that runs
GAP, LONGEST = 0.007, 0.05  # seconds between a stream's parts: for each other stream, at most
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


class Engine:
    """A model behind the server's own front, without HTTP. Made on an event loop.

    open: loads the model. name: of this replica. Whom the server lets in is the fronts' business.
    """

    def __init__(self, settings: Settings, open: Callable[[], LLM], name: str = "0") -> None:
        self.name = name
        self._streams = 0  # that run
        alone = replace(settings, keys=(), cors=(), log=False)
        self.front = Front(alone, open, lambda job: None)
        self._app: ASGIApp = app.make(self.front)

    async def loaded(self) -> None:
        """Until the model is there; raises what loading failed with."""
        waits = [
            asyncio.ensure_future(event.wait()) for event in (self.front.ready, self.front.failed)
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if self.front.fault is not None:
            raise self.front.fault

    def state(self) -> str:
        """What the server calls its own: loading, ready, draining, dead."""
        return self.front.state

    def check_health(self) -> None:
        """Raises `RuntimeError` where nothing more can be written here."""
        if self.front.state == DEAD:
            raise RuntimeError(f"the engine has failed: {self.front.fault!r}")

    def load(self) -> dict[str, float]:
        """What scaling goes by.

        queued_tokens, waiting: tokens still to be read and written of texts that wait for a place,
        and how many these are. running: texts in a place; places: how many there are.
        """
        admission = self.front.admission
        waiting = admission.waiting
        return {
            "queued_tokens": float(sum(each.read + _asked(each) for each in waiting)),
            "waiting": float(len(waiting)),
            "running": float(admission.load - len(waiting)),
            "places": float(admission.places),
        }

    def metrics(self) -> tuple[str, bytes]:
        """The name of this replica, and what Prometheus reads."""
        return self.name, self.front.metrics.text()

    async def ask(self, call: Mapping[str, Any]) -> Answer | None:
        """A whole answer to a call that is not streamed; None where this engine was lost over it.

        call: method, path, headers and body.
        """
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": call["method"],
            "path": call["path"],
            "raw_path": call["path"].encode(),
            "root_path": "",
            "query_string": b"",
            "headers": call["headers"],
            "client": None,
            "server": None,
            "scheme": "http",
        }
        bodies = [call["body"]]
        status, headers, parts = 500, list[tuple[bytes, bytes]](), list[bytes]()

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await asyncio.Event().wait()  # nobody leaves: whoever does, cancels
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.extend(message.get("headers", ()))
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        if self.front.state == DEAD:
            return None
        return status, headers, b"".join(parts)

    async def stream(self, call: Mapping[str, Any]) -> AsyncIterator[Any]:
        """The parts of a streamed answer.

        A part costs Ray's processes about as much as the bundled model's token. So it has all that
        was written since the part before, and there are only so many parts a second of all streams.
        The first one and the last wait for nothing, and so does a stream that is alone.

        call: `chat`, `items` (of `/v1/responses`), `body` (bytes), `key` of the client, `id` and
        `path` for the log, `told` (chunks tell what resumption needs), and of a text that was begun
        elsewhere `goes_on`: its `head`, what was `written` (tokens of each choice), which choices
        `ended`, and why, and how many `events` were told.
        """
        try:
            job, events, head = await self._begin(call)
        except Refused as error:
            refused = renamed(error) if call.get("items") else error
            yield {"refused": (refused.status, refused.message, refused.param, refused.code)}
            return
        self._streams += 1
        clock, handed = asyncio.get_running_loop().time, 0.0
        try:
            yield {"head": head}
            choices: Sequence[Choice | output.Answer] = events.choices
            sent = [choice.sent for choice in choices]
            opening = events.opening()  # after which no echo is told again
            if opening and not call.get("goes_on"):
                yield opening, [], {}, False
            while not events.done:
                await job.gather(handed + self.gap - clock())
                body, handed = events.of(await job.news()), clock()
                if self.front.state == DEAD:
                    return  # what became of the texts then is the next one's to tell
                yield body, *_news(choices, sent), events.done
        finally:
            self._streams -= 1
            job.cancel()

    @property
    def gap(self) -> float:
        """Seconds from one part of a stream to the next, at least."""
        return min(LONGEST, GAP * max(0, self._streams - 1))

    async def close(self) -> None:
        """End everything, and the engine's thread."""
        self.front.abort()
        await asyncio.to_thread(self.front.stop, PATIENCE)

    async def _begin(
        self, call: Mapping[str, Any]
    ) -> tuple[Job, Events | output.Answer, dict[str, Any]]:
        """Let the texts of a call be written. Raises `Refused`."""
        front, goes_on = self.front, call.get("goes_on")
        front.admission.check(1)
        asked, items = await self._asked(call)
        fingerprint = asked.fingerprint(front)
        writing.check_resume(asked.body, fingerprint, len(asked.prompts))
        if goes_on:
            writing.check_fingerprint(goes_on["head"]["fingerprint"], fingerprint)
        requests = self._requests(asked, call["key"], goes_on)
        for index, reason in (goes_on["ended"] if goes_on else {}).items():
            if not requests[index].finished:  # for a reason that its tokens do not tell
                requests[index].finish(reason)
        told = call["told"] or bool(asked.body.speculative_details)
        job = front.begin(requests, asked.chat, {"id": call["id"], "path": call["path"]})
        if goes_on:
            job.id, job.created = goes_on["head"]["answer"]
        wanted = asked.wanted(front, fingerprint if told else "", exact=True)
        if items is not None:
            before = goes_on["events"] if goes_on else 0
            events: Events | output.Answer = output.Answer(job, wanted, items, before)
        else:
            events = Events(job, wanted)
        for index in goes_on["ended"] if goes_on else ():
            events.choices[index].done = True
        return (
            job,
            events,
            {
                "fingerprint": fingerprint,
                "seeds": [prompt.seed for prompt in job.prompts],
                "written": [list(each.output[: each.resumed]) for each in requests],
                "answer": (job.id, job.created),
            },
        )

    async def _asked(self, call: Mapping[str, Any]) -> tuple[Asked, ResponsesBody | None]:
        """What is asked for, and the body whose items are to be told."""
        items = call.get("items")
        kind: Any = ResponsesBody if items else ChatBody if call["chat"] else TextBody
        body: Any = read(kind, call["body"])
        if body.model is not None and body.model not in self.front.settings.names:
            raise unknown_model(body.model, self.front.settings.names)
        if items:
            return await calls.of_chat(self.front, chat_of(body), apart=True), body
        if call["chat"]:
            return await calls.of_chat(self.front, body), None
        return await calls.of_text(self.front, body), None

    def _requests(self, asked: Asked, key: str, goes_on: Any) -> list[Request]:
        """Those of the first prompt first, each behind what was written of it elsewhere."""
        front, params = self.front, asked.params
        front.admission.check(
            len(asked.prompts) * params.n, sum(map(len, asked.prompts))
        )  # of all, before any is made
        requests = []
        for at, ids in enumerate(asked.prompts):
            given = params
            if goes_on:
                mine = goes_on["written"][at * params.n : (at + 1) * params.n]
                given = replace(params, seed=goes_on["head"]["seeds"][at], resume=mine)
            requests += asked.requests(front, key, [ids], given)
        return requests


def _asked(request: Request) -> int:
    """Tokens that a text may still have."""
    return int(min(request.params.longest, request.max_length - len(request.prompt)))


def _news(
    choices: Sequence[Choice | output.Answer], sent: list[int]
) -> tuple[list[tuple[int, list[int]]], dict[int, str | None]]:
    """Tokens of each choice since the last call, and which choices have ended with them.

    sent: tokens of each that were told before; brought up to date.
    """
    tokens, ends = [], {}
    for index, choice in enumerate(choices):
        if choice.sent > sent[index]:
            prompt = len(choice.request.prompt)
            fresh = choice.request.tokens[prompt + sent[index] : prompt + choice.sent]
            tokens.append((index, list(fresh)))
            sent[index] = choice.sent
        if choice.done:
            ends[index] = choice.request.finish_reason
    return tokens, ends
