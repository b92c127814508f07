"""A job as a stream of events: chunks while its texts are written, usage if asked for, [DONE]."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from draftproof.server import counted
from draftproof.server.answers import Wanted, echoed
from draftproof.server.chunks import ALIVE, DONE, Chunks
from draftproof.server.job import Job
from draftproof.server.progress import Fresh, Progress
from draftproof.server.refusals import of_failure


class Choice:
    """One text of a stream, and how much of it was sent."""

    def __init__(self, index: int, job: Job, wanted: Wanted, chunks: Chunks) -> None:
        self.index, self.wanted, self.chunks = index, wanted, chunks
        self.request, self.head = job.requests[index], job.head(index)
        self.echo, self.done = echoed(wanted, job, index), False  # what it begins with
        self._progress = Progress(self.request, wanted.pieces.tokenizer, wanted.by_token)
        self._offset = 0  # characters of the tokens before

    def opening(self) -> Iterator[bytes]:
        """What is sent before anything is written."""
        if self.wanted.chat:
            yield self.chunks.opening(self.index)
        elif self.echo and self.request.params.logprobs is None:
            yield self.chunks.piece(self.index, self.echo)
            self.echo = ""  # else it comes with the scores of its tokens

    def news(self, ended: bool, usage: dict[str, Any] | None) -> Iterator[bytes]:
        """The chunks of what is new. ended: all is known that becomes of it."""
        fresh = list(self._progress.take(ended))
        for piece in fresh:
            yield self._chunk(piece, ended and piece is fresh[-1], usage)
        self.done = ended

    def _chunk(self, fresh: Fresh, last: bool, usage: dict[str, Any] | None) -> bytes:
        request, wanted = self.request, self.wanted
        logprobs = wanted.logprobs(request, fresh, self._offset, self.head)
        if logprobs is not None and not wanted.chat:
            self._offset += sum(map(len, logprobs["tokens"]))
        text = self.echo + ("" if wanted.silent else fresh.text)
        self.echo = ""
        more: dict[str, Any] | None = None
        if last:
            more = wanted.extra([request])
        elif wanted.body.timings_per_token:
            more = {"timings": counted.timings(request, time.monotonic())}
        return self.chunks.piece(
            self.index,
            text,
            logprobs=logprobs,
            reason=request.finish_reason if last else None,
            choice=wanted.choice(request, self.head) if last else None,
            usage=usage,
            more=more,
        )


async def events(job: Job, wanted: Wanted) -> AsyncIterator[bytes]:
    """All of them; a text that fails ends the stream with OpenAI's error body."""
    options = wanted.body.stream_options
    with_usage = options is not None and options.include_usage
    always = options is not None and options.continuous_usage_stats
    chunks = Chunks(job.id, job.created, wanted.model, chat=wanted.chat, usage=with_usage)
    choices = {
        request.key: Choice(index, job, wanted, chunks)
        for index, request in enumerate(job.requests)
    }
    for choice in choices.values():
        for chunk in choice.opening():
            yield chunk
    async for request in job.news(wanted.keep_alive):
        if request is None:
            yield ALIVE
        elif job.ended(request) and request.finish_reason == "error":
            yield chunks.error(of_failure(request))
            yield DONE
            return
        elif not (choice := choices[request.key]).done:  # else it was told twice
            usage = wanted.usage(job) if always else None
            for chunk in choice.news(job.ended(request), usage):
                yield chunk
    if with_usage:
        yield chunks.last(wanted.usage(job), wanted.extra(job.requests))
    yield DONE
