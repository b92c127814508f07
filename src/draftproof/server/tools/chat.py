"""A chat's body: its messages, what the template is told, parameters, and how answers are read."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftproof.server import sampled
from draftproof.server.bodies import ChatBody
from draftproof.server.messages import conversation
from draftproof.server.refusals import bad
from draftproof.server.settings import Limits
from draftproof.server.tools import offered
from draftproof.server.tools.forms import Known
from draftproof.server.tools.reading import Reading, reading

logger = logging.getLogger("draftproof.server")

UNSEEN = (
    "tool_calls: the chat template does not show calls of tools to the model, which sees nothing "
    "but the text of messages that have some"
)


HELD = ("self", "messages", "conversations")  # what transformers passes on besides


class Chat:
    """Raises `Refused`. known: of the model; defaults: parameters that the body does not say."""

    def __init__(
        self, body: ChatBody, known: Known, defaults: Mapping[str, Any], limits: Limits
    ) -> None:
        self._known = known
        self.params = sampled.of_chat(body, defaults, limits)
        self._offered = offered.of_body(body, known)
        if self._offered.grammar is not None:
            self.params = replace(self.params, grammar=self._offered.grammar)
        self.messages = conversation(body, known.tokenizer)
        self.warnings = [*self._offered.warnings]  # what whoever reads an answer should know
        if any("tool_calls" in each for each in self.messages) and not known.shows_calls:
            self.warnings.append(UNSEEN)
        for warning in self.warnings:
            logger.warning(warning)
        self.template = _options(body, known) | (
            {"tools": self._offered.shown} if self._offered.shown else {}
        )

    def reading(self, prompt: Sequence[int], always: bool = False) -> Reading | None:
        """How answers to the prompt are read; None, unless `always`: all of them is content."""
        given = self._offered
        bound = self.params.grammar is not None and not given.free  # what is free may think
        made = reading(self._known, given.form, frozenset(given.schemas), prompt, bound)
        return None if made.plain and not always else made


def _options(body: ChatBody, known: Known) -> dict[str, Any]:
    """What a client tells the template, as `enable_thinking`."""
    given = body.chat_template_kwargs or {}
    takes = getattr(known.tokenizer, "apply_chat_template", None)
    ours = {*HELD, *(inspect.signature(takes).parameters if given and takes is not None else ())}
    if taken := next((name for name in given if name in ours), None):
        raise bad(
            f"chat_template_kwargs may not hold {taken!r}, which the server decides: drop it",
            "chat_template_kwargs",
        )
    return dict(given)
