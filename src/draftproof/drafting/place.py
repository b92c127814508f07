"""The place of a text in another one that it is thought to be like, kept through edits.

Where the text goes on as the other one does the place moves along. Where it does not, it is sought:
behind an insertion, a deletion or a change the text's end soon stands in one place alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REACH = 16  # tokens of the text's end that are compared, at most
SURE = 4  # tokens in a row behind which a place is where the next one is sought from
BEHIND = 4  # times as far as it is, of what stands before an edit: texts seldom turn back


class Place:
    """other: the tokens in which the place is; it begins at the first.

    at: the token that follows. run: tokens before it that are the text's end too.
    """

    def __init__(self, other: Sequence[int]) -> None:
        self.other, self.at, self.run = other, 0, 0
        self.edit = 0  # where the text left the other one last,
        self.since = 0  # and tokens written behind that, until the place is sure again
        self._array = np.asarray(other, np.int64)

    def move(self, tokens: Sequence[int], begin: int) -> None:
        """The text is `tokens`, of which those from `begin` on are new."""
        for end in range(begin + 1, len(tokens) + 1):
            agrees = self.at < len(self.other) and self.other[self.at] == tokens[end - 1]
            if not (agrees or self.since):
                self.edit = self.at
            self.since += bool(self.since or not agrees)
            if agrees:
                self.at, self.run = self.at + 1, self.run + 1
            else:
                self.at, self.run = self._found(tokens[max(0, end - REACH) : end])
            if self.run >= SURE:
                self.since = 0

    @property
    def changed(self) -> int:
        """The place, if as many tokens were changed as were written since the edit."""
        return min(self.edit + self.since, len(self.other))

    def _found(self, end: Sequence[int]) -> tuple[int, int]:
        """Behind the longest end of the text that is there, and how long that is.

        Of several the one that is nearest to where an edit would lead.
        """
        found, length = np.flatnonzero(self._array == end[-1]), 0
        more = found
        while len(more):
            found, length = more, length + 1
            if length == len(end):
                break
            more = found[found >= length]
            more = more[self._array[more - length] == end[-1 - length]]
        if not length:
            return self.changed, 0
        inserted = found - self.edit
        far = np.minimum(np.abs(inserted), np.abs(found + 1 - self.changed))
        far = np.where(inserted < 0, BEHIND * far, far)
        return int(found[np.argmin(far)]) + 1, length
