"""Look-ups natively: what `Following` and `NGrams` do, with the same result."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, byref, c_int32
from typing import Any

from draftproof.drafting.following import Continuations, Following
from draftproof.drafting.handle import Compiled
from draftproof.drafting.ngrams import REMEMBERED, Branches, NGrams
from draftproof.drafting.structures import Look
from draftproof.native import found

MOST = 257  # nodes of a look's draft, or tokens of a branch: one more than `sources.LARGEST`


class CompiledAutomaton(Compiled):
    """All its substrings."""

    what = "suffix automaton"

    def __init__(self, library: CDLL) -> None:
        super().__init__(library.dp_automaton_new(), library.dp_automaton_free)
        self._library, self._length = library, c_int32()

    def extend(self, tokens: Sequence[int]) -> None:
        given = array("i", tokens)  # kept until the call returns
        self._done(self._library.dp_automaton_append(self._handle, *given.buffer_info()))
        self.size += len(given)

    def undo(self, count: int = 1) -> None:
        """Take back the last tokens."""
        self._done(self._library.dp_automaton_undo(self._handle, count))
        self.size -= count

    def repeated(self) -> tuple[int, int]:
        """State and length of the longest suffix of the text that occurs in it earlier too."""
        state = self._library.dp_automaton_repeated(self._handle, byref(self._length))
        return self._done(state), self._length.value

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of `tokens` that the text holds."""
        given = array("i", tokens)
        state = self._library.dp_automaton_match(
            self._handle, *given.buffer_info(), byref(self._length)
        )
        return self._done(state), self._length.value

    def likeliest(self, state: int, nodes: int, depth: int, least: float) -> Continuations:
        """See `Following.likeliest`."""
        room = self._room = self._room.of(nodes)
        made = self._library.dp_automaton_likeliest(
            self._handle, state, nodes, depth, least, *room.arrays
        )
        return room.taken(self._done(made))

    def draft(
        self,
        kept: int,
        more: Sequence[int],
        earlier: Sequence[Any],
        context: int,
        least: int,
        nodes: int,
        depth: int,
        share: float,
    ) -> Continuations:
        """See `Following.draft`; in one call."""
        given = array("i", more)  # kept until the call returns
        others = [other._handle for other in earlier] + [None] * (2 - len(earlier))
        room = self._room = self._room.of(nodes)
        made = self._done(
            self._library.dp_automaton_draft(
                *(self._handle, kept, *given.buffer_info(), *others),
                *(context, least, nodes, depth, share, *room.arrays),
            )
        )
        self.size = kept + len(given)
        return room.taken(made)

    def look(
        self,
        earlier: Sequence[CompiledAutomaton],
        context: int,
        least: int,
        nodes: int,
        share: float,
    ) -> Look:
        """At what `draft` drafts."""
        newer, older = [other._handle for other in earlier] or (None, None)
        look = Look(automaton=self._handle, newer=newer, older=older)
        look.matching, look.context, look.least = least, context, share
        look.longest, look.branches = min(nodes, MOST), 1
        look.own, look.others = self, earlier
        return look


class CompiledNGrams(Compiled):
    """See `NGrams`."""

    what = "n-grams"

    def __init__(self, library: CDLL, count: int) -> None:
        super().__init__(library.dp_ngrams_new(count), library.dp_ngrams_free)
        self._library = library

    def draft(
        self, kept: int, more: Sequence[int], longest: int, enough: int, branches: int
    ) -> Branches:
        """See `NGrams.draft`."""
        given = array("i", more)  # kept until the call returns
        longest, branches = min(longest, kept + len(given)), min(branches, REMEMBERED)
        room = self._room = self._room.of(1 + longest * branches)
        made = self._done(
            self._library.dp_ngrams_draft(
                *(self._handle, kept, *given.buffer_info()),
                *(longest, enough, branches, *room.arrays),
            )
        )
        self.size = kept + len(given)
        return room.taken(made)

    def look(self, longest: int, enough: int, branches: int) -> Look:
        """At what `draft` drafts."""
        look = Look(ngrams=self._handle, matching=enough)
        look.longest, look.branches = min(longest, MOST), min(branches, REMEMBERED)
        look.own, look.others = self, ()
        return look


def automaton() -> Following | CompiledAutomaton:
    """The compiled one, where it was built."""
    library = found()
    return Following() if library is None else CompiledAutomaton(library)


def ngrams(count: int) -> NGrams | CompiledNGrams:
    """Compiled, where they were built."""
    library = found()
    return NGrams(count) if library is None else CompiledNGrams(library, count)
