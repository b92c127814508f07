"""The suffix automaton of a growing text: all its substrings, and how often each occurs.

Extended by a token in constant time, amortised (Blumer et al. 1985). Two substrings share a state
if they end at the same places; a state's link is that of its longest suffix which occurs elsewhere
too.
"""

from __future__ import annotations

from collections.abc import Sequence

REPEATS = 64  # suffixes counted at most per token, the longest first


class Automaton:
    """All substrings of a growing text."""

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.count = [-1], [0], [0]
        self.last, self.size = 0, 0

    def append(self, token: int) -> None:
        """Blumer's extension; the suffixes that end here are counted."""
        fresh = self._state({}, self.length[self.last] + 1, 0)
        at, self.last = self.last, fresh
        self.size += 1
        while at != -1 and token not in self.next[at]:
            self.next[at][token] = fresh
            at = self.link[at]
        if at == -1:
            self.link[fresh] = 0
        else:
            target = self.next[at][token]
            if self.length[target] == self.length[at] + 1:
                self.link[fresh] = target
            else:
                clone = self._state(
                    dict(self.next[target]), self.length[at] + 1, self.count[target]
                )
                self.link[clone] = self.link[target]
                while at != -1 and self.next[at].get(token) == target:
                    self.next[at][token] = clone
                    at = self.link[at]
                self.link[target] = self.link[fresh] = clone
        for _ in range(REPEATS):
            self.count[fresh] += 1
            fresh = self.link[fresh]
            if fresh <= 0:
                break

    def _state(self, following: dict[int, int], length: int, occurred: int) -> int:
        self.next.append(following)
        self.link.append(-1)
        self.length.append(length)
        self.count.append(occurred)
        return len(self.next) - 1

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of `tokens` that the text holds."""
        state = length = 0
        for token in tokens:
            while state and token not in self.next[state]:
                state = self.link[state]
                length = self.length[state]
            state = self.next[state].get(token, 0)
            length = length + 1 if state else 0
        return state, length
