"""What is refused, and how a client is told: OpenAI's error body with the status for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

import msgspec
from starlette.responses import Response

from draftproof.request import Request
from draftproof.sampling import Busy, NoCandidate, SamplingParams

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
}
OURS = {"speculate": "speculative"}  # fields of bodies that parameters call otherwise
NAMES = {each.name for each in fields(SamplingParams)} | {*OURS.values(), "rule"}


class Refused(Exception):
    """A call that is not answered; the message is one sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, " ".join(message.split())
        self.param, self.code, self.retry_after = param, code, retry_after

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": KINDS.get(self.status, "server_error"),
                    "param": self.param,
                    "code": self.code or self.status,
                }
            }
        )

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        more = dict(headers or {})
        if self.retry_after is not None:
            more["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            more["WWW-Authenticate"] = "Bearer"
        return Response(self.body, self.status, more, media_type="application/json")


def bad(message: str, param: str | None = None) -> Refused:
    """A body that cannot be followed."""
    return Refused(400, message, param=param)


def unknown_model(name: str, known: Sequence[str]) -> Refused:
    said = f"the model {name[:80]!r} does not exist here: write {' or '.join(known)}"
    return Refused(404, said, param="model", code="model_not_found")


def of_value(error: ValueError, called: Mapping[str, str] = OURS) -> Refused:
    """What the package has against a value: its sentences begin with the parameter's name.

    called: parameters that the body calls otherwise.
    """
    said = str(error)
    if isinstance(error, Busy):
        return Refused(429, said, code="grammars_busy", retry_after=1)
    for name, ours in called.items():
        said = re.sub(rf"^{name}\b|\b{name}(?==)", ours, said)
    first = said.partition(" ")[0]
    return bad(said, first if first.isidentifier() and "_" in first or first in NAMES else None)


def of_failure(request: Request) -> Refused:
    """Why a text ended with an error."""
    said = request.error or "the text ended with an error"
    if isinstance(request.fault, NoCandidate):  # the client's own bans
        return bad(said)
    if isinstance(request.fault, MemoryError):
        return Refused(503, said, retry_after=1)
    return Refused(500, said)
