"""Look-ups natively: what `Following` and `NGrams` do, with the same result."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, byref, c_double, c_int32
from typing import Any

from draftproof.drafting.following import Continuations, Following
from draftproof.drafting.ngrams import Branches, NGrams
from draftproof.native import OK, found, owned

ROOM = 64  # nodes that there is room for at first


class CompiledAutomaton:
    """All substrings of a growing text, whose last tokens may be taken back.

    Every call raises `MemoryError` once there was none, until the automaton is made anew.
    """

    def __init__(self, library: CDLL) -> None:
        self._library, self._length = library, c_int32()
        self._handle = library.dp_automaton_new()
        if not self._handle:
            raise MemoryError("no memory for a suffix automaton")
        owned(self, library.dp_automaton_free, self._handle)
        self.size = 0
        self._room = Room(ROOM)

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
        made = self._library.dp_automaton_draft(
            *(self._handle, kept, *given.buffer_info(), *others),
            *(context, least, nodes, depth, share, *room.arrays),
        )
        self.size = kept + len(given)
        return room.taken(self._done(made))

    def _done(self, result: int) -> int:
        return _done(result, "suffix automaton")


class CompiledNGrams:
    """See `NGrams`."""

    def __init__(self, library: CDLL, size: int) -> None:
        self._library, self.length = library, 0
        self._handle = library.dp_ngrams_new(size)
        if not self._handle:
            raise MemoryError("no memory for the n-grams of a text")
        owned(self, library.dp_ngrams_free, self._handle)
        self._room = Room(ROOM)

    def draft(
        self, kept: int, more: Sequence[int], longest: int, enough: int, branches: int
    ) -> Branches:
        """See `NGrams.draft`."""
        given = array("i", more)  # kept until the call returns
        longest = min(longest, kept + len(given))
        room = self._room = self._room.of(1 + longest * branches)
        made = self._library.dp_ngrams_draft(
            *(self._handle, kept, *given.buffer_info()),
            *(longest, enough, branches, *room.arrays),
        )
        self.length = kept + len(given)
        return room.taken(_done(made, "n-grams"))


class Room:
    """For tokens, parents and scores of a tree."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.arrays = (c_int32 * nodes)(), (c_int32 * nodes)(), (c_double * nodes)()

    def of(self, nodes: int) -> Room:
        """This, or a larger one where that is too small."""
        return self if nodes <= self.nodes else Room(nodes)

    def taken(self, nodes: int) -> tuple[list[int], list[int], list[float]]:
        tokens, parents, scores = self.arrays
        return tokens[:nodes], parents[:nodes], scores[:nodes]


def _done(result: int, what: str) -> int:
    if result < OK:
        raise MemoryError(f"no memory for the {what} of a text")
    return result


def automaton() -> Following | CompiledAutomaton:
    """The compiled one, where it was built."""
    library = found()
    return Following() if library is None else CompiledAutomaton(library)


def ngrams(size: int) -> NGrams | CompiledNGrams:
    """Compiled, where they were built."""
    library = found()
    return NGrams(size) if library is None else CompiledNGrams(library, size)
