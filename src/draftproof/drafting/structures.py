"""What native code is told of look-ups: structures of `draftproof.h`."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_double, c_int32, c_void_p
from typing import Any

from draftproof.drafting.handle import Compiled


class Look(Structure):
    """dp_look: one look-up of one text, by the token that it would draft first."""

    _fields_ = (
        ("ngrams", c_void_p),
        ("automaton", c_void_p),
        ("newer", c_void_p),
        ("older", c_void_p),
        ("matching", c_int32),
        ("context", c_int32),
        ("least", c_double),
        ("weights", c_void_p),
        ("variances", c_void_p),
        ("reach", c_void_p),
        ("recent", c_void_p),
        ("score", c_double),
        ("guess", c_int32),
        ("place", c_int32),
        ("states", c_int32 * 2),
        ("lengths", c_int32 * 2),
        ("found", c_int32),
        ("longest", c_int32),
        ("branches", c_int32),
        ("drafted", c_int32),
        ("owner", c_int32),
        ("yields", c_int32),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("scores", c_void_p),
    )
    own: Compiled  # what is looked up, which is kept alive, as are those of other texts
    others: Sequence[Compiled]

    @property
    def nodes(self) -> int:
        """That it may draft at once, node 0 included."""
        return 1 + int(self.longest) * int(self.branches)


class Offered(Structure):
    """dp_offer."""

    _fields_ = (
        ("room", c_int32),
        ("depth", c_int32),
        ("count", c_int32),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("owners", c_void_p),
        ("depths", c_void_p),
        ("chances", c_void_p),
        ("survivals", c_void_p),
    )


class Worth(Structure):
    """dp_price."""

    _fields_ = (
        ("rate", c_double),
        ("attention", c_double),
        ("left", c_double),
        ("curve", c_void_p),
        ("known", c_void_p),
        ("most", c_int32),
        ("rows", c_int32),
        ("room", c_int32),
    )


class Merged:
    """The merged trees of a text, of at most so many nodes, node 0 included."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self._numbers = [(c_int32 * nodes)() for _ in range(4)]
        self._chances = [(c_double * nodes)() for _ in range(2)]
        where = [*map(addressof, self._numbers), *map(addressof, self._chances)]
        self._all = Offered(nodes, 0, 1, *where)
        self.address = addressof(self._all)

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """Not copied: tokens (node 0's is not known here), parents, owners, survivals."""
        tokens, parents, owners, _ = self._numbers
        return tokens, parents, owners, self._chances[1]

    def taken(self) -> tuple[list[int], list[int], list[int], list[int], list[float]]:
        """Tokens (node 0's is not known here), parents, owners, depths; chances, given parents."""
        count, (tokens, parents, owners, depths) = self._all.count, self._numbers
        chances = self._chances[0]
        return tokens[:count], parents[:count], owners[:count], depths[:count], chances[:count]
