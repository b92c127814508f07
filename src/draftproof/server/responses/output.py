"""The answer of `/v1/responses`: items, whole or as events while they are written.

Knows the parts of a text; not how requests are let in or run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from draftproof.request import Request
from draftproof.server.answers import Wanted, key
from draftproof.server.chunks import encode
from draftproof.server.job import Job
from draftproof.server.refusals import Refused, of_failure
from draftproof.server.responses.body import ResponsesBody, renamed
from draftproof.server.tools.parser import Part
from draftproof.server.tools.reading import Reading

Event = dict[str, Any]


class Items:
    """The items of one text, from its parts; each step tells its events. name: of the answer."""

    def __init__(self, reading: Reading, name: str) -> None:
        self.made: list[dict[str, Any]] = []
        self._reading, self._name = reading, name
        self._kind = ""  # of the item that is being written

    def take(self, part: Part) -> Iterator[Event]:
        """The events of a further part."""
        if part.kind == "arguments":
            self.made[-1]["arguments"] += part.text
            yield self._told("response.function_call_arguments.delta", delta=part.text)
            return
        if part.kind != self._kind or part.kind == "name":
            yield from self.close()
            yield from self._open(part)
        if part.kind != "name":
            self.made[-1]["content"][0]["text"] += part.text
            kind = "output_text" if part.kind == "content" else "reasoning_text"
            more: Event = {"logprobs": []} if part.kind == "content" else {}
            yield self._of_part(f"response.{kind}.delta", delta=part.text, **more)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """The events of an item's end."""
        if not self._kind:
            return
        item = self.made[-1]
        item["status"] = status
        if self._kind == "name":
            kind = "response.function_call_arguments.done"
            yield self._told(kind, arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            more: Event = {"logprobs": []} if self._kind == "content" else {}
            yield self._of_part(f"response.{part['type']}.done", text=part["text"], **more)
            yield self._of_part("response.content_part.done", part=part)
        self._kind = ""
        yield self._of_item("response.output_item.done", item)

    def _open(self, part: Part) -> Iterator[Event]:
        self._kind = part.kind
        kinds = {"name": "fc", "content": "msg", "reasoning": "rs"}
        digest = hashlib.sha256(f"{self._name} {len(self.made)}".encode()).hexdigest()
        id = f"{kinds[part.kind]}_{digest[:32]}"
        item: Event = {"id": id, "type": "message", "role": "assistant", "status": "in_progress"}
        inner: Event = {"type": "output_text", "text": "", "annotations": []}
        if part.kind == "name":
            call = self._reading.call_id(self._name, part.call)
            item |= {"type": "function_call", "call_id": call, "name": part.text, "arguments": ""}
            del item["role"]
            self.made.append(item)
            yield self._of_item("response.output_item.added", {**item})
            return
        if part.kind == "reasoning":
            item = {"id": id, "type": "reasoning", "summary": [], "status": "in_progress"}
            inner = {"type": "reasoning_text", "text": ""}
        yield from self._empty(item, inner)

    def _empty(self, item: dict[str, Any], inner: dict[str, Any]) -> Iterator[Event]:
        self.made.append({**item, "content": []})
        yield self._of_item("response.output_item.added", {**self.made[-1]})
        self.made[-1]["content"] = [inner]
        yield self._of_part("response.content_part.added", part={**inner})

    def _told(self, kind: str, **more: Any) -> Event:
        at = len(self.made) - 1
        return {"type": kind, "item_id": self.made[at]["id"], "output_index": at, **more}

    def _of_part(self, kind: str, **more: Any) -> Event:
        return self._told(kind, content_index=0, **more)

    def _of_item(self, kind: str, item: dict[str, Any]) -> Event:
        return {"type": kind, "output_index": len(self.made) - 1, "item": item}


class Answer:
    """Of one call, whole or as events; `Stream` takes it where the latter are asked for.

    events: that were told elsewhere already, of a text that goes on.
    """

    def __init__(self, job: Job, wanted: Wanted, body: ResponsesBody, events: int = 0) -> None:
        self.job, self.done = job, False
        self._wanted, self._body = wanted, body
        (self.request,) = job.requests
        assert wanted.reading is not None
        self._progress, self._reader = wanted.progress(self.request)
        self._items = Items(wanted.reading, key(job, 0))
        self._number = events
        for part in wanted.reading.reader().feed(self._progress.before):
            for _ in self._items.take(part):  # events that were told
                pass

    @property
    def sent(self) -> int:
        """Tokens that were told."""
        return self._progress.sent

    @property
    def choices(self) -> list[Answer]:
        """Its texts, as `Events` has them: itself."""
        return [self]

    def opening(self) -> bytes:
        """What is sent before anything is written; nothing, where it was."""
        if self._number:
            return b""
        kinds = ("response.created", "response.in_progress")
        return self._bytes({"type": kind, "response": self.told("in_progress")} for kind in kinds)

    def of(self, moved: Sequence[Request]) -> bytes:
        """Of all that is new."""
        if self.done:
            return b""
        self.done = self.job.ended(self.request)
        return self._bytes([*self._news(self.done)])

    def whole(self) -> dict[str, Any]:
        """Of a text that has ended. Raises `Refused` if it failed."""
        if self.request.finish_reason == "error":
            raise renamed(of_failure(self.request))
        for _ in self._news(ended=True):
            pass
        return self.told(self._status())

    def told(self, status: str) -> dict[str, Any]:
        """OpenAI's object, as far as it is known."""
        request, body = self.request, self._body
        ended = status != "in_progress"
        error = None
        if status == "failed":
            said = "the server ended before the answer was whole"
            if request.finish_reason == "error":
                said = of_failure(request).message
            error = {"code": "server_error", "message": said}
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": "resp_" + self.job.id.rpartition("-")[2],
            "object": "response",
            "created_at": self.job.created,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._wanted.model,
            "output": [{**item} for item in self._items.made],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": request.params.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": request.params.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            **(self._wanted.extra([request]) if ended else {}),
        }

    def _news(self, ended: bool) -> Iterator[Event]:
        assert self._reader is not None
        text = "".join(fresh.text for fresh in self._progress.take(ended))
        for part in self._reader.feed("" if self._wanted.silent else text, ended):
            yield from self._items.take(part)
        if ended:
            if not self._items.made:  # a text of nothing is one
                yield from self._items.take(Part("content", ""))
            status = self._status()
            yield from self._items.close("completed" if status == "completed" else "incomplete")
            yield {"type": f"response.{status}", "response": self.told(status)}

    def _status(self) -> str:
        reasons = {"stop": "completed", "length": "incomplete"}
        return reasons.get(self.request.finish_reason or "", "failed")

    def _usage(self) -> dict[str, Any]:
        """As a chat counts; thoughts are counted by their text."""
        usage = self._wanted.usage(self.job)
        thoughts = [item for item in self._items.made if item["type"] == "reasoning"]
        text = "".join(item["content"][0]["text"] for item in thoughts)
        tokenizer = self._wanted.pieces.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] if text else ()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": len(ids)},
            "total_tokens": usage["total_tokens"],
        }

    def _bytes(self, events: Iterable[Event]) -> bytes:
        made = []
        for event in events:
            made.append(_event(event, self._number))
            self._number += 1
        return b"".join(made)


def broken(refused: Refused, number: int) -> bytes:
    """The event with which a stream ends that cannot go on. number: of events before it."""
    about = {"code": str(refused.code or refused.status), "param": refused.param}
    return _event({"type": "error", "message": refused.message, **about}, number)


def _event(event: Event, number: int) -> bytes:
    body: bytes = encode({**event, "sequence_number": number})
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), body)
