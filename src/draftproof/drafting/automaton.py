"""The suffix automaton of a growing text: all its substrings, and how often each occurs.

Extended by a token in constant time, amortised (Blumer et al. 1985), and taken back token by token,
which costs what writing them did. Two substrings share a state if they end at the same places; a
state's link is that of its longest suffix which occurs elsewhere too.
"""

from __future__ import annotations

from collections.abc import Sequence

REPEATS = 64  # suffixes counted at most per token, the longest first


class Automaton:
    """All substrings of a growing text, whose last tokens may be taken back."""

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.count = [-1], [0], [0]
        self.tokens: list[int] = []
        self.ends = [0]  # the states of the text's beginnings, by length
        self._cloned: list[int] = []  # what the clones were made from, the latest last

    @property
    def last(self) -> int:
        """The state of the whole text."""
        return self.ends[-1]

    @property
    def size(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Blumer's extension; the suffixes that end here are counted."""
        at, fresh = self.last, self._state({}, self.size + 1, 0)
        self.ends.append(fresh)
        self.tokens.append(token)
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
                self._cloned.append(target)
        self._tally(fresh, 1)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.append(token)

    def undo(self, count: int = 1) -> None:
        """Take back the last tokens: what appending them changed, in reverse order."""
        for _ in range(count):
            self._take_back()

    def _take_back(self) -> None:
        token, fresh = self.tokens.pop(), self.ends.pop()
        self._tally(fresh, -1)
        at, clone = self.last, fresh + 1  # if there is one, as the last `append` made it
        target = self._cloned.pop() if clone < len(self.next) else fresh
        if target != fresh:
            self.link[target] = self.link[clone]
        while at != -1 and self.next[at].get(token) == fresh:
            del self.next[at][token]
            at = self.link[at]
        while target != fresh and at != -1 and self.next[at].get(token) == clone:
            self.next[at][token] = target
            at = self.link[at]
        for states in (self.next, self.link, self.length, self.count):
            del states[fresh:]

    def _tally(self, state: int, more: int) -> None:
        for _ in range(REPEATS):
            self.count[state] += more
            state = self.link[state]
            if state <= 0:
                break

    def _state(self, following: dict[int, int], length: int, occurred: int) -> int:
        self.next.append(following)
        self.link.append(-1)
        self.length.append(length)
        self.count.append(occurred)
        return len(self.next) - 1

    def repeated(self) -> tuple[int, int]:
        """State and length of the longest suffix of the text that occurs in it earlier too."""
        state = max(0, self.link[self.last])
        return state, self.length[state]

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
