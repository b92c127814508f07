"""One client of a server: asks for its model, and for answers. Failures become part of an answer.

Times are taken where bytes arrive. Nothing is tried again: a refused call is a measurement.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx2

from draftproof.traffic.answers import Answer, Events, Failed, Question, told

CONNECT_S = 10.0
IDLE_S = 2.0  # that a connection is kept; servers close theirs after 5 s, some in mid-call
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def address(url: str) -> str:
    """Of a server, with or without /v1. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        public = url.rpartition("@")[2]  # whatever stands before it
        raise ValueError(f"{public!r} is no address: write http://HOST:PORT, as serve prints it")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def shown(url: str) -> str:
    """An address without the name and the password in it, which nobody else is to read."""
    return re.sub("//[^/?#]*@", "//", url)


class Client:
    """Calls to one server, as many at once as are made.

    seconds: what an answer may take. now: the clock. Its `url` may be shown to everybody.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        seconds: float,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        whole = address(url)
        self.url, self.now, self._seconds = shown(whole), now, seconds
        headers = {"Accept-Encoding": "identity"}  # bytes are read as they come
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._http = httpx2.AsyncClient(
                base_url=whole,
                headers=headers,
                timeout=httpx2.Timeout(seconds, connect=CONNECT_S),
                limits=httpx2.Limits(keepalive_expiry=IDLE_S),
                trust_env=False,  # a proxy in between is not what is measured
            )
        except (httpx2.InvalidURL, UnicodeError) as error:  # a header takes ASCII alone
            what = "the key" if isinstance(error, UnicodeError) else "the address"
            raise ValueError(f"{what} cannot be sent: it has unusual characters") from error

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """The first that the server names. Raises `ValueError` if it names none."""
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._http.get("/v1/models")
            if answer.status_code != 200:
                raise refused(answer.status_code, answer.content)
            return str(answer.json()["data"][0]["id"])
        except Failed as error:
            raise ValueError(f"the server at {self.url} says {error}") from error
        except TimeoutError as error:
            raise ValueError(
                f"the server at {self.url} names no model within {self._seconds:g} s"
            ) from error
        except httpx2.TransportError as error:
            raise ValueError(
                f"no server answers at {self.url} ({reason(error)}): start one with draftproof "
                "serve MODEL, or check the address"
            ) from error
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self.url}/v1/models names no model: give the address of an OpenAI-compatible "
                "server, or --model NAME"
            ) from error

    async def connect(self, count: int) -> None:
        """Have so many connections open, as clients have that were there before."""
        calls = [self._http.get("/v1/models") for _ in range(count)]
        for came in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(came, BaseException) and not isinstance(came, httpx2.HTTPError | OSError):
                raise came  # the others show in what is measured

    async def ask(
        self, question: Question, shared: dict[str, Any], key: str, due: float | None = None
    ) -> Answer:
        """An answer, streamed. shared: what the body has besides; due: now, unless given."""
        sent = self.now()
        answer = Answer(question, key, sent if due is None else due, sent)
        try:
            async with asyncio.timeout(self._seconds):
                await self._stream(answer, question.body | shared | STREAMED)
        except Failed as error:
            answer.fault, answer.error = error.kind, str(error)
        except (TimeoutError, httpx2.TimeoutException):
            answer.fault = "timeout"
            answer.error = f"there was no whole answer within {self._seconds:g} s"
        except UnicodeError:  # a server may send what cannot be sent back to it
            answer.fault, answer.error = "not text", "the answer before it holds half a character"
        except (httpx2.HTTPError, OSError) as error:
            answer.fault, answer.error = "no connection", f"the connection failed: {reason(error)}"
        answer.ended = self.now()
        return answer

    async def _stream(self, answer: Answer, body: dict[str, Any]) -> None:
        async with self._http.stream("POST", answer.question.path, json=body) as response:
            if response.status_code != 200:
                raise refused(response.status_code, await response.aread())
            events = Events(answer)
            async for raw in response.aiter_raw():
                events.feed(raw, self.now())
            events.end()


def refused(status: int, body: bytes) -> Failed:
    """What a server says that does not answer."""
    try:
        said = told(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        said = body[:100].decode(errors="replace") or "nothing"
    way = ": give it as --api-key" if status in (401, 403) else ""
    return Failed(str(status), f"{status}, {said}{way}")


def reason(error: BaseException) -> str:
    """Of a connection that failed, in words."""
    return str(error) or type(error).__name__
