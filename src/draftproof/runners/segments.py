"""Which packed rows are whose, and what each of them may see.

A mask is a view of few numbers wherever rows are a chain: the last row sees everything, each one
before it one slot less, so that all of them, from the last to the first, are one vector read from
0, 1, 2, ... on. Windows are measured in positions, not in slots: siblings share a position.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Part:
    """Rows begin..end of a segment, which see nothing behind `slots`: a chain, or a tree's nodes.

    The rows of a chain stand in the last slots.
    """

    begin: int
    end: int
    slots: int
    chain: bool


@dataclass(slots=True)
class Segment:
    """The packed rows begin..end of one request: `fresh` new tokens, then nodes from `first`.

    slots:   0 .. cached | cached .. root    | root .. root + N
             committed   | new (a chain)     | nodes of the tree
    """

    begin: int
    end: int
    row: int
    cached: int
    fresh: int
    tree: TokenTree | None
    first: int
    parts: Sequence[Part] = ()
    _masks: dict[Any, Tensor] = field(default_factory=dict)
    _paths: tuple[array[int], array[int]] | None = None

    def __post_init__(self) -> None:
        rows, tree = self.end - self.begin, self.tree
        if tree is None or tree.is_chain:
            self.parts = [Part(0, rows, self.slots, True)]
        else:
            self.parts = [Part(self.fresh, rows, self.slots, False)]
            if self.fresh:
                self.parts.insert(0, Part(0, self.fresh, self.root, True))

    @property
    def root(self) -> int:
        return self.cached + self.fresh

    @property
    def at(self) -> int:
        """The first slot written."""
        return self.cached + self.fresh + self.first if self.first else self.cached

    @property
    def slots(self) -> int:
        """Slots in use after this pass."""
        return self.root + (len(self.tree.tokens) if self.tree is not None else 0)

    def positions(self) -> list[int]:
        """Absolute positions of the packed rows."""
        chain = list(range(self.cached, self.root))
        if self.tree is not None:
            chain += [self.root + depth for depth in self.tree.depths[self.first :]]
        return chain

    def apart(self, most: int) -> tuple[Sequence[Part], Sequence[Part]]:
        """Its parts; a prompt of more than `most` new tokens apart from them, as the second."""
        if self.fresh <= most:
            return self.parts, ()
        rows, chain = self.end - self.begin, self.tree is None or self.tree.is_chain
        nodes = [Part(self.fresh, rows, self.slots, chain)] if rows > self.fresh else []
        return nodes, [Part(0, self.fresh, self.root, True)]

    def paths(self) -> tuple[array[int], array[int]]:
        """Of the tree's nodes: the slots from the root to each, all on end, and each one's end."""
        if self._paths is None:
            assert self.tree is not None
            paths, ends = array("i"), array("i")
            for node in range(self.first, len(self.tree)):
                paths.extend([self.root + each for each in self.tree.path(node)])
                ends.append(len(paths))
            self._paths = paths, ends
        return self._paths

    def mask(self, part: Part, window: int | None, like: Tensor) -> Tensor | None:
        """Additive (rows, slots), a chain's rows from the last to the first; None: all is seen."""
        if window is not None and window >= part.slots:
            window = None  # no position is that far back
        if part.chain and part.end - part.begin == 1 and window is None:
            return None
        known = (part, window, like.dtype, like.device)
        if known not in self._masks:
            make = _of_chain if part.chain else self._of_tree
            self._masks[known] = make(part, window, like)
        return self._masks[known]

    def folded(self, part: Part, window: int | None, like: Tensor, groups: int) -> Tensor | None:
        """The same for few rows: a copy, in their own order, `groups` times one below another."""
        known = (part, window, like.dtype, like.device, groups)
        if known not in self._masks:
            mask = self.mask(part, window, like)
            if mask is None:
                return None
            self._masks[known] = (mask.flip(0) if part.chain else mask).repeat(groups, 1)
        return self._masks[known]

    def _of_tree(self, part: Part, window: int | None, like: Tensor) -> Tensor:
        assert self.tree is not None
        seen = torch.ones(part.end - part.begin, part.slots, dtype=torch.bool)
        seen[:, self.root :] = self.tree.ancestors()[self.first :]
        if window is not None:
            depths = torch.tensor(self.tree.depths)
            places = torch.cat([torch.arange(self.root), self.root + depths])
            seen &= (self.root + depths[self.first :, None]) - places < window
        mask = torch.zeros(seen.shape, dtype=like.dtype)
        return mask.masked_fill_(~seen, float("-inf")).to(like.device)


def _of_chain(part: Part, window: int | None, like: Tensor) -> Tensor:
    """Row i from the end sees slot j where `line[i + j]` is 0."""
    rows, slots = part.end - part.begin, part.slots
    line = like.new_zeros(slots + rows - 1)
    line[slots:] = float("-inf")
    if window is not None:
        line[: slots - window] = float("-inf")
    return line.as_strided((rows, slots), (1, 1))
