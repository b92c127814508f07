"""What every runner keeps of a key besides keys and values: its committed tokens, its last tree.

The roll-back and the prefix cache, the same for any storage. Knows no model and no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftproof.runners.base import Work
from draftproof.runners.rows import Rows, shared_length, whole
from draftproof.tree import TokenTree


class Movable(Protocol):
    """Storage whose slots can be copied, within a row and into that of another key."""

    def move(self, row: int, sources: Sequence[int], to: int) -> None: ...
    def copy(self, row: int, key: int, slots: int) -> None: ...


@dataclass(slots=True)
class Scratch:
    """The last tree of a key, and how many of its nodes have run."""

    tree: TokenTree | None
    ran: int


class Committed:
    """The part of the `Runner` protocol that is bookkeeping.

    Its order of statements is its promise: an interrupt between any two leaves a length that is
    not above what was written, and a tree only while all its nodes lie where they were written.
    """

    def __init__(self, rows: Rows, storage: Movable, prefix_cache: bool) -> None:
        self.prefix_cache = prefix_cache
        self._rows, self._storage = rows, storage
        self._scratch: dict[int, Scratch] = {}
        # The committed ones, kept for the prefix cache; behind the length anything may stand.
        self._tokens: dict[int, array[int]] = {}
        self._salts: dict[int, str] = {}  # of those

    @property
    def held(self) -> Rows:
        """Whose row is which, and what they take."""
        return self._rows

    def cached(self, key: int) -> int:
        return self._rows.lengths.get(key, 0)

    def expect(self, key: int, slots: int) -> None:
        """A new key will likely need so many slots."""
        self._rows.expected[key] = whole(slots)

    def begin(self, key: int, tokens: Sequence[int], salt: str = "") -> None:
        """Begin with what a key of this salt, earlier or running, has of `tokens` but the last."""
        known = key in self._tokens or key in self._rows.rows  # a draft that failed begins again
        if not self.prefix_cache or known:
            return
        wanted = array("q", tokens[:-1])
        (parked, held), (running, read) = (
            self._rows.likest(wanted, salt),
            self._likest(wanted, salt),
        )
        shared = max(held, read)
        if read > held or (held and self._rows.spares(parked, held)):
            self._rows.use(parked)
            if not self._copied(key, running if read > held else parked, shared):
                shared = 0
        elif held:
            self._rows.adopt(key, parked, held)
        self._salts[key] = salt
        self._tokens[key] = wanted[:shared]

    def _likest(self, tokens: array[int], salt: str) -> tuple[int, int]:
        """The row of a running key that begins most like `tokens`, and how many they share."""
        best = -1, 0
        for key, own in self._tokens.items():
            if self._salts.get(key) == salt and key in self._rows.rows:
                shared = shared_length(own[: self.cached(key)], tokens)
                if shared > best[1]:
                    best = self._rows.rows[key], shared
        return best

    def _copied(self, key: int, row: int, length: int) -> bool:
        """Whether a new `key` has a copy of the first slots of a row: there may be no room."""
        try:
            self._storage.copy(row, key, length)
        except MemoryError:
            self._rows.release(key)
            return False
        self._rows.lengths[key] = length
        return True

    def fork(self, key: int, source: int, length: int) -> None:
        """`key` begins with a copy of the first `length` committed tokens of `source`."""
        assert key != source and 0 <= length <= self.cached(source)
        self.free(key)
        self.expect(key, self._rows.expected.get(source, 0))
        if length:
            self._storage.copy(self._rows.rows[source], key, length)
        if source in self._tokens:
            self._salts[key] = self._salts[source]
            self._tokens[key] = self._tokens[source][:length]
        self._rows.lengths[key] = length

    def hand_over(self, key: int, heir: int, length: int) -> None:
        """`heir` takes over what is cached of `key`, up to `length`; `key` is forgotten."""
        assert key != heir and 0 <= length <= self.cached(key)
        self.free(heir)
        self._scratch.pop(key, None)
        tokens = self._tokens.pop(key, None)
        if tokens is not None:
            self._salts[heir] = self._salts.pop(key)
            self._tokens[heir] = tokens[:length]
        self._rows.hand_over(key, heir, length)

    def free(self, key: int) -> None:
        self._scratch.pop(key, None)
        tokens = self._tokens.pop(key, None)
        self._rows.release(key, tokens, self._salts.pop(key, ""))

    def crop(self, key: int, length: int) -> None:
        assert 0 <= length <= self._rows.lengths[key]
        self._scratch.pop(key, None)
        self._rows.lengths[key] = length

    def keep(self, key: int, path: Sequence[int]) -> None:
        assert not path or path[-1] < self.ran(key), "a node was kept that never ran"
        scratch = self._scratch.pop(key, None)
        base = self._rows.lengths[key]
        moved = 0
        while moved < len(path) and path[moved] == moved:
            moved += 1
        if moved < len(path):
            sources = [base + node for node in path[moved:]]
            self._storage.move(self._rows.rows[key], sources, base + moved)
        if key in self._tokens and scratch is not None and scratch.tree is not None:
            kept = [scratch.tree.tokens[node] for node in path]
            self._tokens[key][base:] = array("q", kept)
        self._rows.lengths[key] = base + len(path)

    def ran(self, key: int) -> int:
        """How many nodes of the key's tree lie in scratch."""
        scratch = self._scratch.get(key)
        return scratch.ran if scratch is not None else 0

    def passing(self, item: Work) -> None:
        """A pass over `item` begins: it writes over the last tree, from the first node on."""
        if not item.first:
            self._scratch.pop(item.key, None)
        elif (scratch := self._scratch.get(item.key)) is not None:
            scratch.ran = item.first

    def passed(self, item: Work) -> None:
        """A pass over `item` is done: `new` is committed, the tree is scratch."""
        cached = self._rows.lengths[item.key]
        if item.key in self._tokens:
            self._tokens[item.key][cached:] = array("q", item.new)
        self._rows.lengths[item.key] = cached + len(item.new)
        nodes = 0 if item.tree is None else len(item.tree.tokens)
        self._scratch[item.key] = Scratch(item.tree, nodes)

    def forget(self, rows: Rows, storage: Movable) -> None:
        """Begin again with empty rows."""
        self._scratch.clear()
        self._tokens.clear()
        self._salts.clear()
        self._rows, self._storage = rows, storage

    def check(self, keys: Collection[int]) -> None:
        """Asserts that nothing is held but for `keys`, and that what is held fits together."""
        self._rows.check(keys)
        for held in (self._scratch, self._tokens, self._salts):
            assert held.keys() <= set(keys), "something is remembered of a key that has ended"
        assert all(len(tokens) >= self.cached(key) for key, tokens in self._tokens.items())
