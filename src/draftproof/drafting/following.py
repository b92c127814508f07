"""What followed the longest match of a text's end, in the text itself or in earlier ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any

from draftproof.drafting.automaton import Automaton

Continuations = tuple[list[int], list[int], list[float]]  # tokens, parents, shares


class Following(Automaton):
    """A suffix automaton that tells what followed a state."""

    def draft(
        self,
        kept: int,
        more: Sequence[int],
        earlier: Sequence[Any],  # of the same kind
        context: int,
        least: int,
        nodes: int,
        depth: int,
        share: float,
    ) -> Continuations:
        """`more` comes behind the first `kept` tokens; what followed the longest match of its end.

        earlier: at most two automata of other texts, in which the last `context` tokens are looked
        for. least: tokens that must match. nodes, depth: at most. share: see `likeliest`.
        """
        self.undo(self.size - kept)
        self.extend(more)
        longest, (state, length) = self, self.repeated()
        last = self.tokens[max(0, self.size - context) :]
        for other in earlier:
            at, matched = other.match(last)
            if matched > length:
                longest, state, length = other, at, matched
        return longest.likeliest(state, nodes, depth, share) if length >= least else ([], [], [])

    def likeliest(self, state: int, nodes: int, depth: int, least: float) -> Continuations:
        """What followed a state, best first, by how often each followed what stands before it.

        nodes, depth: at most. least: share below which a continuation is left out. Parents count
        from 1, as node 0 is what the state ends with. Negative tokens are left out.
        """
        tokens, parents, shares, depths = list[int](), list[int](), list[float](), [0]
        order = count()
        heap: list[tuple[float, int, int, int, int]] = []  # -share, order, parent, token, state

        def push(parent: int, at: int, share: float) -> None:
            if depths[parent] >= depth:
                return
            following = {token: to for token, to in self.next[at].items() if token >= 0}
            total = sum(self.count[to] for to in following.values())
            for token, to in following.items():
                part = share * self.count[to] / total if total else 0.0
                if part >= least:
                    heapq.heappush(heap, (-part, next(order), parent, token, to))

        push(0, state, 1.0)
        while heap and len(tokens) < nodes:
            less, _, parent, token, to = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            shares.append(-less)
            depths.append(depths[parent] + 1)
            push(len(tokens), to, -less)
        return tokens, parents, shares
