"""What stands before every call: sizes of headers and bodies, web pages, API keys, ids, the log.

Plain ASGI, so that nothing is between a stream and its socket.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.refusals import Refused
from draftproof.server.settings import Limits, Settings, digest

OPEN = frozenset({"/", "/health", "/ready", "/load", "/version", "/metrics"})
UNLOGGED = frozenset({"/health", "/ready", "/load", "/metrics"})  # what is polled
READING = frozenset({"GET", "HEAD", "OPTIONS"})  # nothing is written for these
logger = logging.getLogger("draftproof.server")


class Guards:
    """Around the application, what is allowed of pages apart."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, headers = time.monotonic(), 0, Headers(scope=scope)
        given = headers.get("x-request-id", "")
        known = given if given.isascii() and given.isprintable() and len(given) <= 128 else ""
        name = known or uuid.uuid4().hex
        scope["draftproof"] = {"id": name, "key": "", "logged": False, "send": send}

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            self._check(scope, headers)
        except Refused as refused:
            await refused.response({"Connection": "close"})(scope, receive, told)
        else:
            try:
                await self.app(scope, receive, told)
            except Exception:
                if not status:  # else it was answered and logged as a defect
                    raise
        polled = scope["path"] in UNLOGGED and status < 500
        if self.settings.log and not (polled or scope["draftproof"]["logged"]):
            took = 1000 * (time.monotonic() - began)
            path = scope["path"][:200].encode("unicode_escape").decode()
            logger.info("%s %s %s %d %.0f ms", name, scope["method"], path, status, took)

    def _check(self, scope: Scope, headers: Headers) -> None:
        limits = self.settings.limits
        if sum(len(k) + len(v) for k, v in scope["headers"]) > limits.header_bytes:
            raise Refused(431, f"headers may take {limits.header_bytes:,} bytes: send fewer")
        if not self.settings.keys:  # a page that has none is let in nowhere
            check_page(scope["method"], headers, self.settings)
        word, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if word.lower() == "bearer" else ""
        scope["draftproof"]["key"] = key
        if scope["path"] not in OPEN and scope["method"] != "OPTIONS":
            self._authenticate(key)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > limits.body_bytes:
            raise too_large(limits)

    def _authenticate(self, key: str) -> None:
        """Over all keys, so that the time taken tells nothing."""
        if not self.settings.keys:
            return
        if not any_equal(digest(key.encode("latin-1")), self.settings.keys):
            raise Refused(
                401,
                "the API key is wrong or missing: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )


def any_equal(given: bytes, keys: Sequence[bytes]) -> bool:
    """Whether one of the keys is it; always compares with every one."""
    same = [hmac.compare_digest(given, key) for key in keys]
    return any(same)


def check_page(method: str, headers: Headers, settings: Settings) -> None:
    """Refuse what a browser sends for a page that is not this server's own.

    It keeps answers from such a page, and lets it send: so a page could have texts written. And a
    page whose name was pointed at this machine, once it was loaded, counts as this server's own:
    its name is in Host. Raises `Refused`.
    """
    given = headers.get("host", "")
    bracketed = given.startswith("[")  # an address of IPv6
    host = given[1:].partition("]")[0] if bracketed else given.partition(":")[0].rstrip(".").lower()
    if settings.local and given and not _is_here(host, settings.hosts):
        raise Refused(
            403,
            f"the server is not called {host[:80]!r} here: call it by its address or as "
            "localhost, or start it with --allow-host NAME or with --api-key",
        )
    origin = headers.get("origin", "")
    if method in READING or not (origin == "null" or origin.startswith(("http:", "https:"))):
        return
    ours = {given, headers.get("x-forwarded-host", given)}
    same = headers.get("sec-fetch-site") == "same-origin" or origin.partition("://")[2] in ours
    if not (same or {"*", origin} & {*settings.cors}):
        raise Refused(
            403,
            f"web pages of {origin[:80]!r} may not call here: start the server with --cors ORIGIN",
        )


def _is_here(host: str, names: Sequence[str]) -> bool:
    """host: in small letters."""
    named = {"localhost", *map(str.lower, names)}
    if host in named or host.endswith(".localhost"):
        return True
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def too_large(limits: Limits) -> Refused:
    return Refused(413, f"a body may have {limits.body_bytes:,} bytes: send less")


async def body_of(request: Request, limits: Limits) -> bytes:
    """The whole body. Raises `Refused` if it is too large or takes too long to come."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.arrival):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large(limits)
                parts.append(part)
    except TimeoutError:
        raise Refused(
            408, f"the body took more than {limits.arrival:g} s: send it at once"
        ) from None
    except ClientDisconnect:
        raise Refused(400, "the client left before its body was read") from None
    return b"".join(parts)
