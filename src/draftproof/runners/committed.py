"""What every runner keeps of a key besides keys and values: its committed tokens, its last tree.

The roll-back and the prefix cache, the same for any storage. Knows no model and no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftproof.runners.base import Work
from draftproof.runners.kv import Rows
from draftproof.tree import TokenTree


class Movable(Protocol):
    """Storage whose slots can be copied within a row."""

    def move(self, row: int, sources: Sequence[int], to: int) -> None: ...


@dataclass(slots=True)
class Scratch:
    """The last tree of a key, and how many of its nodes have run."""

    tree: TokenTree | None
    ran: int


class Committed:
    """The part of the `Runner` protocol that is bookkeeping."""

    def __init__(self, rows: Rows, storage: Movable, prefix_cache: bool) -> None:
        self.prefix_cache = prefix_cache
        self._rows, self._storage = rows, storage
        self._scratch: dict[int, Scratch] = {}
        self._tokens: dict[int, list[int]] = {}  # the committed ones, kept for the prefix cache

    def cached(self, key: int) -> int:
        return self._rows.lengths.get(key, 0)

    def begin(self, key: int, tokens: Sequence[int]) -> None:
        """Take over what an earlier key cached of `tokens`; the last one is left to be run."""
        if self.prefix_cache and key not in self._tokens:  # a draft that failed begins again
            shared = self._rows.adopt(key, tokens[:-1])
            self._tokens[key] = list(tokens[:shared])

    def free(self, key: int) -> None:
        self._rows.release(key, self._tokens.pop(key, ()))
        self._scratch.pop(key, None)

    def crop(self, key: int, length: int) -> None:
        assert 0 <= length <= self._rows.lengths[key]
        self._rows.lengths[key] = length
        self._scratch.pop(key, None)
        if key in self._tokens:
            del self._tokens[key][length:]

    def keep(self, key: int, path: Sequence[int]) -> None:
        scratch = self._scratch[key]
        assert not path or path[-1] < scratch.ran, "a node was kept that never ran"
        base = self._rows.lengths[key]
        moved = next((i for i, node in enumerate(path) if node != i), len(path))
        if moved < len(path):
            sources = [base + node for node in path[moved:]]
            self._storage.move(self._rows.rows[key], sources, base + moved)
        if key in self._tokens and scratch.tree is not None:
            self._tokens[key][base:] = [scratch.tree.tokens[node] for node in path]
        self._rows.lengths[key] = base + len(path)
        self._scratch[key] = Scratch(None, 0)

    def ran(self, key: int) -> int:
        """How many nodes of the key's tree lie in scratch."""
        scratch = self._scratch.get(key)
        return scratch.ran if scratch is not None else 0

    def passed(self, item: Work) -> None:
        """A pass over `item` is done: `new` is committed, the tree is scratch."""
        cached = self._rows.lengths[item.key]
        if item.key in self._tokens:  # before the length: an interrupt may come in between
            self._tokens[item.key][cached:] = item.new
        self._rows.lengths[item.key] = cached + len(item.new)
        nodes = 0 if item.tree is None else len(item.tree.tokens)
        self._scratch[item.key] = Scratch(item.tree, nodes)

    def forget(self, rows: Rows, storage: Movable) -> None:
        """Begin again with empty rows."""
        self._rows, self._storage = rows, storage
        self._scratch.clear()
        self._tokens.clear()
