"""What is common to texts that native code holds."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_double, c_int32

from draftproof.native import BAD_ARGUMENT, OK, owned

ROOM = 64  # nodes that there is room for at first


class Compiled:
    """A growing text, whose last tokens may be taken back.

    Every call raises `MemoryError` once there was none, until it is made anew.
    """

    what: str

    def __init__(self, handle: int | None, free: Callable[[int], None]) -> None:
        if not handle:
            raise MemoryError(f"no memory for the {self.what} of a text")
        owned(self, free, handle)
        self._handle, self._room = handle, Room(ROOM)
        self.size = 0

    def _done(self, result: int) -> int:
        assert result != BAD_ARGUMENT
        if result < OK:
            raise MemoryError(f"no memory for the {self.what} of a text")
        return result

    def grown(self, result: int, size: int) -> None:
        """A call had this result, behind which the text has so many tokens."""
        self._done(result)
        self.size = size


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
