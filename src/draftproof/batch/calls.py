"""A line becomes requests, and their texts the line of an answer, as the server would answer it.

What says when or how an answer was written is left out of it: that is in the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from draftproof.batch.lines import CHAT, Line
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.server import answers, sampled
from draftproof.server.answers import Wanted
from draftproof.server.bodies import ChatBody, TextBody, checked
from draftproof.server.job import Job
from draftproof.server.pieces import Pieces
from draftproof.server.prompts import (
    begun,
    check_echo,
    check_room,
    echo,
    encoded,
    prepared,
    prompts_of,
)
from draftproof.server.refusals import Refused, bad
from draftproof.server.settings import Limits
from draftproof.server.tools.chat import Chat
from draftproof.server.tools.forms import Known

TOLD = ("metrics", "timings", "timings_per_token", "speculative_details")  # of how it was written
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
SAME_RULE = "coupled"  # the one under which a text is a function of its parameters and seed


@dataclass(frozen=True, slots=True)
class Call:
    """A line that runs."""

    line: Line
    job: Job
    wanted: Wanted

    @property
    def requests(self) -> Sequence[Request]:
        return self.job.requests

    @property
    def starved(self) -> bool:
        """Whether one of its texts ended for want of memory, which others had."""
        return any(each.starved and each.finish_reason == "length" for each in self.requests)


class Calls:
    """Of one model. name: what lines call it. defaults: parameters that a line does not say."""

    def __init__(self, llm: LLM, name: str, defaults: Mapping[str, Any]) -> None:
        self.llm, self.name, self.defaults = llm, name, defaults
        self._limits, self._pieces = Limits(), Pieces(llm.tokenizer)
        self._known = Known(llm.tokenizer)

    def begin(self, line: Line) -> Call:
        """Its requests, which do not run yet. Raises `Refused` for a body that is not followed."""
        chat = line.url == CHAT
        body: Any = checked(ChatBody if chat else TextBody, line.body)
        self._check(body)
        defaults = {"seed": line.seed, **self.defaults}
        talk: Chat | None = None
        if chat:
            talk = Chat(body, self._known, defaults, self._limits)
            given, params = [talk.messages], talk.params
            prompts = [encoded(self.llm, talk.messages, talk.template)]
        else:
            check_echo(self.llm, body.echo)
            params = sampled.of_text(body, defaults, self._limits)
            given = prompts_of(body)
            prompts = [encoded(self.llm, prompt) for prompt in given]
        start = begun(self.llm, getattr(body, "decoder_prompt", None))
        check_room(self.llm, prompts, start, body.length)
        requests = prepared(self.llm, prompts, params, rule=SAME_RULE, decoder_prompt=start)
        for request in requests:
            request.warnings += talk.warnings if talk is not None else []
        echoes = []
        if not chat and body.echo:
            pairs = zip(given, prompts, strict=True)
            echoes = [echo(self.llm.tokenizer, *each) for each in pairs]
        wanted = Wanted(
            body=body,
            chat=chat,
            model=self.name,
            pieces=self._pieces,
            drafter="",
            echoes=echoes,
            silent=body.max_tokens == 0,
            reading=None if talk is None else talk.reading(prompts[0]),
        )
        kind = "chatcmpl-" if chat else "cmpl-"
        return Call(line, Job(line.id.replace("batch_req_", kind), requests, _nobody), wanted)

    def _check(self, body: Any) -> None:
        if body.model is not None and body.model != self.name:
            raise Refused(
                404,
                f"model is {body.model[:80]!r}, and this batch is written by {self.name!r}: put "
                "other models into files of their own",
                param="model",
                code="model_not_found",
            )
        if body.stream:
            raise bad("stream cannot be followed: the answers of a batch come whole", "stream")
        if body.resume is not None:
            raise bad("resume is of a server's streams: run a batch again to go on", "resume")
        for name in TOLD:
            if getattr(body, name):
                raise bad(f"{name} is not told in answers of a batch: see its statistics", name)
        if body.rule not in (None, SAME_RULE):
            raise bad(
                f"rule {body.rule[:80]!r} cannot be followed: a batch that can be cut and resumed "
                f"is written by the rule {SAME_RULE!r}",
                "rule",
            )


def answer(call: Call) -> dict[str, Any]:
    """The line of the output. Raises `Refused` if one of its texts failed."""
    body = answers.whole(call.job, call.wanted)
    body["created"] = 0  # clients want the field
    body["usage"] = {name: body["usage"][name] for name in COUNTS}
    body.pop("warnings", None)
    return _told(call.line, 200, body)


def refusal(line: Line, refused: Refused) -> dict[str, Any]:
    """The line of the output for a call that is not followed."""
    return _told(line, refused.status, msgspec.json.decode(refused.body))


def broken(line: Line) -> dict[str, Any]:
    """The line of the output for a line that is no call."""
    error = {"code": "invalid_line", "message": line.wrong}
    return {"id": line.id, "custom_id": line.custom_id, "response": None, "error": error}


def statistics(call: Call) -> dict[str, Any]:
    """What a call took; seconds since its requests were made."""
    stats = [request.stats for request in call.requests]
    firsts = [each.first_token - each.began for each in stats if each.first_token]
    return {
        "id": call.line.id,
        "custom_id": call.line.custom_id,
        "line": call.line.number,
        "seconds": max(each.ended - each.began for each in stats),
        "first_token_s": min(firsts, default=None),
        "prompt_tokens": sum(len(request.prompt) for request in call.requests),
        "cached_tokens": sum(each.cached for each in stats),
        "tokens": sum(each.tokens for each in stats),
        "steps": sum(each.steps for each in stats),
        "drafted": sum(each.drafted for each in stats),
        "accepted": sum(each.accepted for each in stats),
        "warnings": [line for each in call.requests for line in answers.warnings(each)],
    }


def _told(line: Line, status: int, body: Any) -> dict[str, Any]:
    response = {"status_code": status, "request_id": line.id, "body": body}
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": None}


def _nobody(requests: Sequence[Request]) -> None:
    """A job of a batch is ended by nobody."""
