"""How the texts of a chat are read: thoughts, content and calls, in OpenAI's fields.

Knows parts and tokenizers; not how chunks are written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.server.tools.forms import THINK, Form, Known
from draftproof.server.tools.parser import Calls, Part, joined
from draftproof.server.tools.thinking import Thinking

TAIL = 64  # tokens at the end of a prompt, in which a tag may be open


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one conversation's answers. form: None: there are no calls. names: of the tools. thinks:
    the model may; inside: it does, as the prompt ends. tokenizer: whose text is read."""

    tokenizer: Any
    form: Form | None
    names: Collection[str]
    thinks: bool
    inside: bool

    @property
    def plain(self) -> bool:
        """Whether all of a text is content."""
        return self.form is None and not self.thinks

    def reader(self) -> Reader:
        return Reader(
            Thinking(self.inside) if self.thinks else None,
            Calls(self.form, self.names) if self.form is not None else None,
        )

    def fields(self, part: Part, key: str) -> dict[str, Any]:
        """A part as the delta of a chunk. key: of the answer, and of its choice."""
        if part.kind == "content":
            return {"content": part.text}
        if part.kind == "reasoning":
            return {"reasoning_content": part.text}
        call: dict[str, Any] = {"index": part.call}
        if part.kind == "name":
            call |= {"id": self.call_id(key, part.call), "type": "function"}
            call["function"] = {"name": part.text, "arguments": ""}
        else:
            call["function"] = {"arguments": part.text}
        return {"tool_calls": [call]}

    def message(self, parts: Sequence[Part], key: str) -> dict[str, Any]:
        """All parts of a text as one message."""

        def text(kind: str) -> str:
            return "".join(part.text for part in parts if part.kind == kind)

        calls = [
            {
                "id": self.call_id(key, part.call),
                "type": "function",
                "function": {"name": part.text, "arguments": arguments(parts, part.call)},
            }
            for part in parts
            if part.kind == "name"
        ]
        content: str | None = text("content")
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        if thoughts := text("reasoning"):
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        else:
            message["content"] = content
        return message

    def call_id(self, key: str, call: int) -> str:
        """The same for the same answer, so that a batch that is run again writes the same."""
        digest = hashlib.sha256(f"{key} {call}".encode()).hexdigest()
        short = self.form is not None and self.form.short_ids
        return digest[:9] if short else f"call_{digest[:24]}"


class Reader:
    """Of one text."""

    def __init__(self, thinking: Thinking | None, calls: Calls | None) -> None:
        self._thinking, self._calls = thinking, calls

    @property
    def called(self) -> bool:
        return self._calls is not None and self._calls.count > 0

    def feed(self, text: str, last: bool = False) -> list[Part]:
        """What is certain of a text, whose next piece this is; last: nothing comes behind it."""
        parts = [Part("content", text)]
        if self._thinking is not None:
            parts = self._thinking.feed(text, last)
        if self._calls is None:
            return joined(parts)
        found = [part for part in parts if part.kind != "content"]
        text = "".join(part.text for part in parts if part.kind == "content")
        return joined([*found, *self._calls.feed(text, last)])


def arguments(parts: Sequence[Part], call: int) -> str:
    """Of a call, as they were written."""
    return "".join(p.text for p in parts if p.kind == "arguments" and p.call == call)


def reading(
    known: Known, form: Form | None, names: Collection[str], prompt: Sequence[int], bound: bool
) -> Reading:
    """How answers to a prompt are read.

    bound: the answer follows a grammar, and so does not think first.
    """
    thinks = known.thinks and not bound
    markers = [*(form.markers if form is not None else ()), *(THINK if thinks else ())]
    inside = False
    if thinks:
        tail = str(known.tokenizer.decode([*prompt[-TAIL:]], skip_special_tokens=False))
        inside = THINK[0] in tail and THINK[1] not in tail.rpartition(THINK[0])[2]
    return Reading(known.showing(markers), form, names, thinks, inside)
