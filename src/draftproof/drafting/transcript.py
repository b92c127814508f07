"""One request's text in the ids of a draft with another tokenizer.

Settled is what both tokenizers end a token behind; the tail is encoded anew in every step, as what
follows may change it, and bounded. Knows no model.
"""

from __future__ import annotations

from draftproof.drafting.script import BROKEN, Script
from draftproof.writing import Writing

REMEMBERED = 64  # steps that can be gone back without beginning anew
LONG = 4  # times the lookbehind: a tail is settled, wherever its tokens end
CHARACTER = 4  # bytes at most


class Transcript:
    """Follows a request. own: the draft's script; other: the target's."""

    def __init__(self, own: Script, other: Script, bos: int | None, back: int) -> None:
        self.own, self.other, self.bos, self.back = own, other, bos, back
        self.settled: list[int] = []
        self.tail: list[int] = []  # behind the last settled id, which it begins with
        self.ready = False  # not within a character, nor behind what the draft has no row for
        self.begun = self.told = False  # in the draft's cache; the request, that drafting ended
        self.lost: int | None = None  # a settled id that the draft has no row for
        self.read = 0  # the target's tokens that are settled
        self._marks = [(0, 0)]  # what was read and settled, to go back to
        self._seen: tuple[int, int] | None = None  # rewinds and length of the text

    def follow(self, request: Writing, vocabulary: int) -> int:
        """Take in what was written since; how many settled ids stayed. A second time none goes."""
        seen = request.rewinds, len(request.tokens)
        if self._seen == seen or self.lost is not None:
            return len(self.settled)
        shortest = request.shortest(self._seen[0] if self._seen else 0)
        while self._marks[-1][0] > shortest:  # a draft was drafted for, and then rejected
            self._marks.pop()
        self.read, size = self._marks[-1]
        del self.settled[size:]
        self._seen = seen
        self._take(request.tokens, vocabulary)
        self._marks.append((self.read, len(self.settled)))
        del self._marks[1:-REMEMBERED]
        return size

    def _take(self, tokens: list[int], vocabulary: int) -> None:
        own, back, read = self.own, self.back, self.read
        before, after = tokens[max(0, read - back) : read], tokens[read:]
        known, text = self.other.text(before), self.other.text(after, before)
        broken, end = text.endswith(BROKEN), max(0, len(after) - back)
        if stuck := broken and len(after) > LONG * back + CHARACTER:  # bytes that are no text
            while end > len(after) - back - CHARACTER and self._breaks(after[:end], before):
                end -= 1
        part = self.other.text(after[:end], before)
        ids, head = (own.ids(t, known) or own.ids(t, "\n") or own.encode(t) for t in (text, part))
        fits = max(ids, default=0) < vocabulary
        self.ready = fits and not broken
        spanned = not self.ready or part.endswith(BROKEN) or head != ids[: len(head)]
        if spanned and len(after) > LONG * back and not broken:
            end, head = len(after), ids
        elif spanned and not stuck:  # perhaps no token spans it when more is written
            end, head = 0, []
        if not self.settled and self.bos not in (None, *ids[:1]):
            self.settled.append(self.bos)  # type: ignore[arg-type]
        self.settled += head
        self.read += end
        if max(head, default=0) >= vocabulary:
            self.lost, self.ready = max(head), False
        rest = ids[len(head) :] if head == ids[: len(head)] else []
        self.tail = [*self.settled[-1:], *rest]

    def _breaks(self, ids: list[int], before: list[int]) -> bool:
        return self.other.text(ids, before).endswith(BROKEN)
