"""What followed the same last tokens earlier in a growing text, whose end may be taken back."""

from __future__ import annotations

from collections.abc import Sequence

Branches = tuple[list[int], list[int], list[float]]  # tokens, parents, scores; the last token first

REMEMBERED = 16  # latest places of an n-gram that are looked at
LONGEST = 32  # longer matches, and longer than an n-gram, are not told apart
# Tokens that must match before a draft is as likely right as wrong: ranks its nodes among those of
# other methods.
DOUBT = 1.0


class NGrams:
    """Of `count` tokens."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.text: list[int] = []
        self.latest: dict[tuple[int, ...], int] = {}  # the last place behind such an n-gram
        self.before: list[int] = []  # of each place, the one before it of the same n-gram; -1: none

    @property
    def size(self) -> int:
        """Tokens of the text."""
        return len(self.text)

    def draft(
        self, kept: int, more: Sequence[int], longest: int, enough: int, branches: int
    ) -> Branches:
        """`more` comes behind the first `kept` tokens; what may follow, as a tree.

        The longest match wins. Of those of at least `enough` tokens, or as long, `branches` that
        are followed differently are taken, each with at most `longest` tokens.
        """
        self._cut(kept)
        for token in more:
            self._append(token)
        text = self.text
        tokens, parents, scores = [text[-1]], [-1], [1.0]
        place, matches = self.latest.get(tuple(text[-self.count :]), -1), list[tuple[int, int]]()
        while place >= 0 and len(matches) < REMEMBERED:
            matches.append((self._match(place), place))
            place = self.before[place]
        matches.sort(reverse=True)
        different = 0
        for length, place in matches:
            if different == branches or length < min(enough, matches[0][0]):
                break
            node, new = 0, len(tokens)
            for depth, token in enumerate(text[place : place + longest], 1):
                children = range(node + 1, len(tokens))
                same = [at for at in children if (parents[at], tokens[at]) == (node, token)]
                if not same:
                    same = [len(tokens)]
                    tokens.append(token)
                    parents.append(node)
                    scores.append((matches[0][0] / (matches[0][0] + DOUBT)) ** depth)
                node = same[0]
            different += len(tokens) > new
        return tokens, parents, scores

    def _append(self, token: int) -> None:
        """Its place is behind the n-gram that ended the text."""
        place, earlier = len(self.text), -1
        if place >= self.count:
            ngram = tuple(self.text[-self.count :])
            earlier = self.latest.get(ngram, -1)
            self.latest[ngram] = place
        self.before.append(earlier)
        self.text.append(token)

    def _cut(self, kept: int) -> None:
        while len(self.text) > kept:
            self.text.pop()
            earlier = self.before.pop()
            if len(self.text) >= self.count:
                ngram = tuple(self.text[-self.count :])
                if earlier < 0:
                    del self.latest[ngram]
                else:
                    self.latest[ngram] = earlier

    def _match(self, place: int) -> int:
        """How many tokens before `place` are the last ones."""
        text, size, most = self.text, 0, min(place, max(LONGEST, self.count))
        while size < most and text[place - 1 - size] == text[-1 - size]:
            size += 1
        return size
