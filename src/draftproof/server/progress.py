"""How much of a text has been sent: what is new of it, by step or token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from draftproof.request import Request
from draftproof.text import TextStream


class Fresh(NamedTuple):
    """New text, and the new tokens `begin` to `end` of the output, which may show text later."""

    text: str
    begin: int
    end: int


class Progress:
    """Of one text.

    by_token: every token comes by itself, with the text that it completes. exact: text is never
    that of a token that comes later, as it may be while another thread writes. unended: nobody was
    told of the end, should the text go on behind its last token.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Any,
        by_token: bool,
        exact: bool = False,
        unended: bool = False,
    ) -> None:
        self.request, self.sent = request, request.resumed
        self._singly: TextStream | None = None
        self.before = ""  # text that was sent elsewhere, where this one is exact
        self.by_token, self._exact = by_token, exact
        if (by_token or exact) and tokenizer is not None:
            # The request's own stream tells only what all its tokens together make.
            stops = request.params.stop or ()
            self._singly = TextStream(tokenizer, request.prompt, tuple(stops))
            self.before = "".join(map(self._text, range(request.resumed)))
            # A text that another thread has ended since has its last tokens yet to tell.
            if request.finished and 0 < request.resumed == len(request.output) and not unended:
                self.before += self._rest()

    def take(self, ended: bool) -> Iterator[Fresh]:
        """What is new; the last piece of all where it has `ended`, which may be empty."""
        request = self.request
        begin, end = self.sent, len(request.tokens) - len(request.prompt)
        if request.watched is not None and not ended:  # what is known of them comes with them
            end = min(end, request.resumed + request.stats.tokens)
        if self._exact and not ended and (request.torn or request.finished):
            end = max(begin, end - 1)  # who goes on behind the last token was told of the end
        self.sent = end
        if self._exact and not self.by_token:
            text = "".join(map(self._text, range(begin, end))) + (self._rest() if ended else "")
            if text or end > begin or ended:
                yield Fresh(text, begin, end)
            return
        if not self.by_token:
            text = request.text.take() if isinstance(request.text, TextStream) else ""
            if text or end > begin or ended:
                yield Fresh(text, begin, end)
            return
        for at in range(begin, end):
            text = self._text(at) + (self._rest() if ended and at == end - 1 else "")
            yield Fresh(text, at, at + 1)
        if ended and begin == end:
            yield Fresh(self._rest(), end, end)

    def _text(self, at: int) -> str:
        """What token `at` of the output completes."""
        request = self.request
        token = request.tokens[len(request.prompt) + at]
        if self._singly is None or token in request.stop_ids:
            return ""
        self._singly.push([token], stops=at + 1 > request.params.min_tokens)
        return self._singly.take()

    def _rest(self) -> str:
        if self._singly is None:
            return ""
        self._singly.flush()
        return self._singly.take()
