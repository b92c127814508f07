"""What is written as an answer, and a whole one.

Knows a job and how its client wants it; not how requests are let in or run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.request import LOSSY, Request
from draftproof.server import counted, pieces
from draftproof.server.bodies import Written
from draftproof.server.job import Job
from draftproof.server.pieces import Pieces
from draftproof.server.progress import Fresh, Progress
from draftproof.server.refusals import of_failure
from draftproof.server.tools.parser import Part
from draftproof.server.tools.reading import Reader, Reading
from draftproof.server.trees import Trees


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a call wants its answer.

    echoes: what each prompt's choices begin with; () for nothing. silent: what is written is not
    shown, as only the prompt is asked about. drafter: who drafts, where nothing chooses.
    fingerprint: what has to agree for a text to go on elsewhere, told with each piece; "": nothing.
    exact: text comes with its own tokens, and whoever goes on knows of each choice whether its end
    was told.
    reading: how a chat's texts are taken apart; None: they are content as they stand.
    """

    body: Written
    chat: bool
    model: str
    pieces: Pieces
    drafter: str
    echoes: Sequence[str] = ()
    silent: bool = False
    by_token: bool = False
    fingerprint: str = ""
    exact: bool = False
    reading: Reading | None = None

    def progress(self, request: Request) -> tuple[Progress, Reader | None]:
        """Of a text: how much of it was sent, and who takes it apart."""
        tokenizer = self.pieces.tokenizer if self.reading is None else self.reading.tokenizer
        exact = self.exact or bool(self.fingerprint) or self.reading is not None
        progress = Progress(request, tokenizer, self.by_token, exact, unended=self.exact)
        if self.reading is None:
            return progress, None
        reader = self.reading.reader()
        reader.feed(progress.before)
        return progress, reader

    @property
    def scored(self) -> bool:
        """Whether the prompt's tokens have log-probabilities in the answer."""
        return bool(self.echoes)

    def logprobs(
        self, request: Request, fresh: Fresh, offset: int, head: Request
    ) -> dict[str, Any] | None:
        """Of a piece of a choice; offset: characters of tokens before it. head: the first
        completion of its prompt, which has the prompt's."""
        top, prompt = request.params.logprobs, len(request.prompt)
        if top is None:
            return None
        tokens = request.tokens[prompt + fresh.begin : prompt + fresh.end]
        known: list[Any] = [*request.logprobs[fresh.begin : fresh.end]]
        as_ids = self.body.return_tokens_as_token_ids
        if self.chat:
            return pieces.chat(self.pieces, tokens, known, top, as_ids)
        if self.silent:
            tokens, known = [], []
        if self.scored and not fresh.begin:
            unread = [None] * (prompt - len(head.prompt_logprobs))  # it was ended before
            tokens = [*request.prompt, *tokens]
            known = [*head.prompt_logprobs, *unread, *known]
        return pieces.text(self.pieces, tokens, known, offset, as_ids)

    def begin(self, request: Request) -> int:
        """Characters of the tokens before what is told of a choice, as `text_offset` counts."""
        before = request.output[: request.resumed]
        if before and self.scored:
            before = [*request.prompt, *before]
        named = self.body.return_tokens_as_token_ids
        return sum(len(self.pieces.named(token, named)) for token in before)

    def resume(self, request: Request, fresh: Fresh, head: Request) -> dict[str, Any]:
        """What it takes to go on behind a piece; head: see `logprobs`."""
        if not self.fingerprint:
            return {}
        prompt = len(request.prompt)
        return {
            "resume": {
                "token_ids": request.tokens[prompt + fresh.begin : prompt + fresh.end],
                "position": fresh.end,
                "seed": head.seed,
                "fingerprint": self.fingerprint,
            }
        }

    def extra(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Fields of an answer that were asked for, or that a reader has to know."""
        more: dict[str, Any] = {}
        if self.body.metrics or self.body.speculative_details:
            more["metrics"] = {"speculative_decoding": counted.acceptance(requests)}
        if (self.body.timings or self.body.timings_per_token) and len(requests) == 1:
            more["timings"] = counted.timings(requests[0], time.monotonic())
        told = dict.fromkeys(line for request in requests for line in warnings(request))
        if told:
            more["warnings"] = list(told)
        return more

    def choice(self, request: Request, head: Request) -> dict[str, Any]:
        """Fields of a choice that were asked for; head: see `logprobs`."""
        more: dict[str, Any] = {}
        if self.body.speculative_details:
            details = counted.details(request, self.drafter) | {"seed": request.seed}
            if request.watched is not None:
                details["trees"] = Trees(request, self.pieces, self.drafter).all()
            more["speculative_details"] = details
        if self.body.prompt_logprobs is not None:
            more["prompt_logprobs"] = pieces.prompt(self.pieces, head.prompt_logprobs)
        return more

    def usage(self, job: Job) -> dict[str, Any]:
        return counted.usage(job.requests, self.silent)


def warnings(request: Request) -> list[str]:
    """What a reader should know of how a text was written."""
    lossy = [LOSSY] if request.stats.lossy and request.stats.drafted else []
    return request.warnings + lossy


def whole(job: Job, wanted: Wanted) -> dict[str, Any]:
    """The answer of a job that is done. Raises `Refused` if one of its texts failed."""
    choices = []
    for index, request in enumerate(job.requests):
        if request.finish_reason == "error":
            raise of_failure(request)
        count = len(request.tokens) - len(request.prompt)
        text = request.text.text[request.shown :] if request.text is not None else ""
        fresh = Fresh("" if wanted.silent else text, request.resumed, count)
        shown: dict[str, Any] = {"message": {"role": "assistant", "content": fresh.text}}
        reason = request.finish_reason
        if wanted.reading is not None:
            parts, reason = taken_apart(wanted, request)
            shown = {"message": wanted.reading.message(parts, key(job, index))}
        if not wanted.chat:
            shown = {"text": echoed(wanted, job, index) + fresh.text}
        choices.append(
            {"index": index}
            | shown
            | {
                "logprobs": wanted.logprobs(request, fresh, wanted.begin(request), job.head(index)),
                "finish_reason": reason,
            }
            | wanted.choice(request, job.head(index))
            | wanted.resume(request, fresh, job.head(index))
        )
    return {
        "id": job.id,
        "object": "chat.completion" if wanted.chat else "text_completion",
        "created": job.created,
        "model": wanted.model,
        "choices": choices,
        "usage": wanted.usage(job),
        **wanted.extra(job.requests),
    }


def taken_apart(wanted: Wanted, request: Request) -> tuple[list[Part], str | None]:
    """The parts of a text that has ended, and why it has."""
    progress, reader = wanted.progress(request)
    assert reader is not None
    text = "".join(fresh.text for fresh in progress.take(ended=True))
    parts = reader.feed("" if wanted.silent else text, last=True)
    return parts, reason_of(request, reader)


def reason_of(request: Request, reader: Reader | None) -> str | None:
    """Why a text has ended, in OpenAI's words."""
    called = reader is not None and reader.called and request.finish_reason == "stop"
    return "tool_calls" if called else request.finish_reason


def key(job: Job, index: int) -> str:
    """Of a choice of an answer; ids of its calls are made of it."""
    return f"{job.id} {index}"


def echoed(wanted: Wanted, job: Job, index: int) -> str:
    """What a choice begins with, unless its beginning was sent elsewhere."""
    if not wanted.echoes or job.requests[index].resumed:
        return ""
    return wanted.echoes[index * len(wanted.echoes) // len(job.requests)]
