"""Text of an answer with its tokens coloured by what drafted them, in a terminal's colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftproof.request import Request
from draftproof.text import TextStream

# Black on light grounds, so that it is read on a dark terminal and on a light one.
GROUNDS = {
    "prediction": 153,
    "ngram": 157,
    "suffix": 223,
    "draft": 225,
    "forced": 229,
    "medusa": 159,
    "early-exit": 217,
}
OTHERS = (225, 159, 217, 153, 157, 223, 229)
END = "\x1b[0m"


class Coloured:
    """Of one text, which is watched. drafter: who drafts, where nothing chooses among several."""

    def __init__(self, request: Request, tokenizer: Any, drafter: str) -> None:
        request.watched = []
        self.request, self.drafter = request, drafter
        self.used: dict[str, str] = {}  # what has drafted so far, and how it is begun
        self._text = TextStream(tokenizer, request.prompt, tuple(request.params.stop or ()))
        self._steps, self._shown = 0, 0  # that were told of, and their tokens

    def take(self, ended: bool = False) -> Iterator[tuple[str, str]]:
        """New text, and how its colour is begun: "" is the model's own."""
        request = self.request
        assert request.watched is not None
        for step in request.watched[self._steps :]:
            self._steps += 1
            for at in range(step.written):
                yield self._next(), self._begin(step.writer(at, self.drafter))
        if ended:
            while self._shown < len(request.output):  # an interrupt came before their step was told
                yield self._next(), ""
            self._text.flush()
            yield self._text.take(), ""

    def _next(self) -> str:
        """What the next token completes."""
        request = self.request
        token = request.tokens[len(request.prompt) + self._shown]
        self._shown += 1
        if token in request.stop_ids:
            return ""
        self._text.push([token], stops=self._shown > request.params.min_tokens)
        return self._text.take()

    def _begin(self, source: str) -> str:
        if source and source not in self.used:
            taken = {*self.used.values()}
            free = [_begun(ground) for ground in OTHERS if _begun(ground) not in taken]
            usual = GROUNDS.get(source)
            self.used[source] = _begun(usual) if usual else (free or [_begun(OTHERS[0])])[0]
        return self.used[source] if source else ""

    def legend(self) -> str:
        """Who drafted, each in its colour; "" where nobody did."""
        return ", ".join(f"{begin}{source}{END}" for source, begin in self.used.items())


def _begun(ground: int) -> str:
    return f"\x1b[30;48;5;{ground}m"
