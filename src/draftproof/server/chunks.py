"""The chunks of a stream as bytes: all but text and numbers is written once for the whole stream.

OpenAI's chat completion chunks and text completion chunks; server-sent events around them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from draftproof.server.refusals import Refused

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
ALIVE = b": keep-alive\n\n"


class Chunks:
    """Of one stream.

    usage: every chunk has the field, as clients that ask for it expect.
    """

    def __init__(self, id: str, created: int, model: str, *, chat: bool, usage: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": id, "object": kind, "created": created, "model": model}
        self.chat, self._usage = chat, usage
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        inner = b'"delta":{"content":' if chat else b'"text":'
        outer = b"}" if chat else b""
        self._between = inner, outer + b',"logprobs":'

    def opening(self, index: int) -> bytes:
        """A chat's first chunk of a choice."""
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + b'{"index":%d,' % index + role + self._end(None)

    def piece(
        self,
        index: int,
        text: str,
        *,
        logprobs: Any = None,
        reason: str | None = None,
        choice: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        delta: dict[str, Any] | None = None,
    ) -> bytes:
        """New text of a choice. choice, more: further fields of the choice, and of the chunk.

        delta: of a chat, instead of text.
        """
        inner, outer = self._between
        if delta is not None:
            inner, outer = b'"delta":', outer[1:]
        parts = [
            self._head,
            b'{"index":%d,' % index,
            inner,
            encode(text if delta is None else delta),
            outer,
            b"null" if logprobs is None else encode(logprobs),
            b',"finish_reason":',
            b"null" if reason is None else encode(reason),
            _fields(choice),
            b"}]",
            _fields(more),
            self._end(usage),
        ]
        return b"".join(parts)

    def last(self, usage: dict[str, Any], more: dict[str, Any]) -> bytes:
        """The chunk without choices. more: further fields, of all choices together."""
        return self._head + b"]" + _fields(more) + self._end(usage)

    def error(self, refused: Refused) -> bytes:
        return b"data: " + refused.body + b"\n\n"

    def _end(self, usage: dict[str, Any] | None) -> bytes:
        if usage is not None:
            return b',"usage":' + encode(usage) + b"}\n\n"
        return b',"usage":null}\n\n' if self._usage else b"}\n\n"


def _fields(more: dict[str, Any] | None) -> bytes:
    """Further fields of an object, behind others."""
    return b"," + encode(more)[1:-1] if more else b""
