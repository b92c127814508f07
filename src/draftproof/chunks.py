"""A streamed completion: what was written since the last look, until the text ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.text import TextStream


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer: new text and new tokens; the last one has a reason."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[dict[int, float]] | None = None  # of the tokens, if they were asked for
    error: str | None = None  # the cause, if the reason is "error"


def chunks(engine: Engine, request: Request) -> Iterator[Chunk]:
    """Run `request`; closing the iterator aborts it."""
    sent = len(request.prompt) + request.resumed
    with closing(engine.run([request])) as news:
        while True:
            done = next(news, None) is None or request.finished
            tokens, known = request.tokens[sent:], request.logprobs
            text = request.text.take() if isinstance(request.text, TextStream) else ""
            if tokens or done:
                begin, sent = sent - len(request.prompt), sent + len(tokens)
                asked = request.params.logprobs is not None
                logprobs = known[begin:][: len(tokens)] if asked else None
                reason = request.finish_reason if done else None
                yield Chunk(text, tokens, reason, logprobs, request.error if done else None)
            if done:
                return
