"""A job as a stream of events: chunks while its texts are written, usage if asked for, [DONE]."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.request import Request
from draftproof.server import counted
from draftproof.server.answers import Wanted, echoed, key, reason_of
from draftproof.server.chunks import DONE, Chunks
from draftproof.server.job import Job
from draftproof.server.progress import Fresh
from draftproof.server.refusals import of_failure
from draftproof.server.tools.reading import Reader
from draftproof.server.trees import Trees


class Choice:
    """One text of a stream, and how much of it was sent."""

    def __init__(self, index: int, job: Job, wanted: Wanted, chunks: Chunks) -> None:
        self.index, self.wanted, self.chunks = index, wanted, chunks
        self.request, self.head = job.requests[index], job.head(index)
        self.echo, self.done = echoed(wanted, job, index), False  # what it begins with
        self._progress, self._reader = wanted.progress(self.request)
        self._key = key(job, index)
        named = self.request, wanted.pieces, wanted.drafter
        self._trees = Trees(*named) if self.request.watched is not None else None
        self._offset = wanted.begin(self.request)  # characters of the tokens before

    @property
    def sent(self) -> int:
        """Tokens that were told."""
        return self._progress.sent

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
            last = ended and piece is fresh[-1]
            if self._reader is None:
                yield self._chunk(piece, last, usage)
            else:
                yield from self._apart(self._reader, piece, last, usage)
        self.done = ended

    def _apart(
        self, reader: Reader, fresh: Fresh, last: bool, usage: dict[str, Any] | None
    ) -> Iterator[bytes]:
        """A chunk for each part of what is new; what is told besides comes with the last of them.

        Nothing, where nothing is certain yet and nothing else is told.
        """
        assert self.wanted.reading is not None
        parts = reader.feed("" if self.wanted.silent else fresh.text, last)
        deltas = [self.wanted.reading.fields(part, self._key) for part in parts]
        for delta in deltas[:-1]:
            yield self.chunks.piece(self.index, "", delta=delta, usage=usage)
        told = self.request.params.logprobs is not None or bool(self.wanted.fingerprint)
        told = told or self._trees is not None
        if deltas or last or told or self.wanted.body.timings_per_token:
            yield self._chunk(fresh, last, usage, deltas[-1] if deltas else {})

    def _chunk(
        self,
        fresh: Fresh,
        last: bool,
        usage: dict[str, Any] | None,
        delta: dict[str, Any] | None = None,
    ) -> bytes:
        request, wanted = self.request, self.wanted
        logprobs = wanted.logprobs(request, fresh, self._offset, self.head)
        if logprobs is not None and not wanted.chat:
            self._offset += sum(map(len, logprobs["tokens"]))
        text = self.echo + ("" if wanted.silent else fresh.text)
        self.echo = ""
        choice = wanted.choice(request, self.head) if last else {}
        if self._trees is not None and fresh.begin < fresh.end:  # a token, as each comes by itself
            whole = choice.get("speculative_details", {})
            choice["speculative_details"] = self._trees.next() | whole
        more: dict[str, Any] | None = None
        if last:
            more = wanted.extra([request])
        elif wanted.body.timings_per_token:
            more = {"timings": counted.timings(request, time.monotonic())}
        return self.chunks.piece(
            self.index,
            text,
            logprobs=logprobs,
            reason=reason_of(request, self._reader) if last else None,
            choice=choice | wanted.resume(request, fresh, self.head),
            usage=usage,
            more=more,
            delta=delta,
        )


class Events:
    """All of them, as bytes of all that is there at a time; a text that fails ends the stream with
    OpenAI's error body."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        self.job, self._wanted, self.done = job, wanted, False
        options = wanted.body.stream_options
        self._with_usage = options is not None and options.include_usage
        self._always = options is not None and options.continuous_usage_stats
        named = {"chat": wanted.chat, "usage": self._with_usage}
        self._chunks = Chunks(job.id, job.created, wanted.model, **named)
        self.choices = [
            Choice(index, job, wanted, self._chunks) for index in range(len(job.requests))
        ]
        self._by_key = {choice.request.key: choice for choice in self.choices}

    def opening(self) -> bytes:
        """What is sent before anything is written."""
        return b"".join(chunk for choice in self.choices for chunk in choice.opening())

    def of(self, moved: Sequence[Request]) -> bytes:
        """Of all that moved since the last call."""
        job, events = self.job, list[bytes]()
        for request in moved:
            if job.ended(request) and request.finish_reason == "error":
                self.done = True
                return b"".join([*events, self._chunks.error(of_failure(request)), DONE])
            if not (choice := self._by_key[request.key]).done:  # else it was told twice
                usage = self._wanted.usage(job) if self._always else None
                events += choice.news(job.ended(request), usage)
        if job.done:
            self.done = True
            if self._with_usage:
                events.append(
                    self._chunks.last(self._wanted.usage(job), self._wanted.extra(job.requests))
                )
            events.append(DONE)
        return b"".join(events)
