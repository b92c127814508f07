"""The suffix automaton natively: what `Automaton` does, with the same result."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, byref, c_double, c_int32

from draftproof.drafting.automaton import Automaton, Continuations
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
        self._make_room(ROOM)

    def _make_room(self, nodes: int) -> None:
        self._room = nodes
        self._tokens, self._parents = (c_int32 * nodes)(), (c_int32 * nodes)()
        self._shares = (c_double * nodes)()

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
        """See `Automaton.likeliest`."""
        if nodes > self._room:
            self._make_room(nodes)
        tokens, parents, shares = self._tokens, self._parents, self._shares
        made = self._done(
            self._library.dp_automaton_likeliest(
                self._handle, state, nodes, depth, least, tokens, parents, shares
            )
        )
        return tokens[:made], parents[:made], shares[:made]

    def _done(self, result: int) -> int:
        if result < OK:
            raise MemoryError("no memory for the suffix automaton of a text")
        return result


def automaton() -> Automaton | CompiledAutomaton:
    """The compiled one, where it was built."""
    library = found()
    return Automaton() if library is None else CompiledAutomaton(library)
