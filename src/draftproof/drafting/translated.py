"""A model of another tokenizer beside the target: its cache follows what is settled of a text."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix  # of lists as well as of paths

from draftproof.drafting.reading import catch_up, start, waits
from draftproof.drafting.script import Script
from draftproof.drafting.transcript import Transcript
from draftproof.runners.base import Target
from draftproof.writing import Writing


class Translated:
    """A draft with a cache of its own, and the texts that it follows, by key."""

    def __init__(
        self, runner: Target, own: Script, other: Script, bos: int | None, back: int
    ) -> None:
        self.runner, self.own, self.other, self.back = runner, own, other, back
        self.bos = bos if bos is not None and bos < runner.vocabulary else None
        self.texts: dict[int, Transcript] = {}

    def release(self, request: Writing) -> None:
        self.runner.free(request.key)
        self.texts.pop(request.key, None)

    def close(self) -> None:
        self.texts.clear()
        self.runner.close()

    def catch_up(self, requests: Sequence[Writing], ahead: bool = False) -> set[int]:
        """Take in and read what was written; the keys that can be drafted for, but for the text."""
        return catch_up(self.runner, requests, self._follow, self._stop, ahead)

    def _follow(self, request: Writing, before: Sequence[int], ahead: bool) -> list[int] | None:
        runner, key = self.runner, request.key
        if (text := self.texts.get(key)) is None:
            text = self.texts[key] = Transcript(self.own, self.other, self.bos, self.back)
        stayed = text.follow(request, runner.vocabulary)
        if runner.cached(key) > (most := max(0, stayed - 1)):
            runner.crop(key, most)
        why = "" if text.lost is None else f"it has no row for token id {text.lost}"
        if len(text.settled) + len(text.tail) > runner.max_length:
            why = f"its context ends at {runner.max_length} tokens"
        if why and not text.told:
            text.told = True
            request.warnings.append(f"a draft model drafts no further: {why}")
        if why:
            return None
        if not text.begun:
            if waits(runner, request, before, len(text.settled), ahead):
                return None
            text.begun = True
            start(runner, request, text.settled, lambda other: self._shared(text, other))
        return text.settled

    def _shared(self, text: Transcript, key: int) -> int:
        other = self.texts.get(key)
        return len(commonprefix([text.settled, other.settled])) if other is not None else 0

    def _stop(self, request: Writing, error: Exception) -> None:
        self.release(request)
        request.stop_drafting(error)
