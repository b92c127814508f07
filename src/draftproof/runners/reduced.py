"""A head whose rows are zeros for most tokens, as of a draft that writes few: the rest is used.

The tokens that are left out have the logit 0, as the whole head would give them, so the same
checkpoint gives the same logits wherever it is loaded. Knows no models.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.runners.matrix import floats

FIELD = "draft_vocab_size"  # of a configuration: rows of the head that are not zeros


def kept(head: Tensor) -> Tensor | None:
    """The ids (R,), ascending, whose rows of the head (V, hidden) are not zeros.

    None: all of them, or none.
    """
    ids = head.ne(0).any(1).nonzero()[:, 0]
    return ids if 0 < len(ids) < len(head) else None


class Reduced:
    """Logits over all tokens, of those over the ids (R,) that have rows in the head.

    rest: the logit of the other tokens.
    """

    def __init__(self, ids: Tensor, vocabulary: int, rest: float = 0.0) -> None:
        self.ids, self.vocabulary, self.rest = ids, vocabulary, rest
        self._wide = torch.zeros(0, vocabulary)
        self._ids = ids.tolist()
        among = {*self._ids}
        self._other = next((id for id in range(vocabulary) if id not in among), vocabulary)

    def widened(self, logits: Tensor) -> Tensor:
        """(N, V) of (N, R): a view of one buffer that lives until the next call."""
        count = len(logits)
        if len(self._wide) < count or self._wide.dtype != logits.dtype:
            with torch.inference_mode(False):  # or it could be written to in that mode alone
                self._wide = floats(count, self.vocabulary).to(logits.dtype).fill_(self.rest)
        return self._placed(self._wide[:count], logits)

    def alone(self, logits: Tensor) -> Tensor:
        """The same in memory of its own."""
        wide = floats(len(logits), self.vocabulary).to(logits.dtype).fill_(self.rest)
        return self._placed(wide, logits)

    def _placed(self, wide: Tensor, logits: Tensor) -> Tensor:
        # Row by row: an operation over all of them would wake torch's own threads, which then spin
        # on the cores that the next pass needs.
        for row, of_ids in zip(wide, logits, strict=True):
            row.index_copy_(0, self.ids, of_ids)
        return wide

    def best(self, found: Sequence[int], places: Sequence[int], logits: Tensor) -> array[int]:
        """The first argmax over all tokens, of rows that lie at `places` of (N, R).

        found: the first argmax of each of those among the ids; -1 where one was found bad.
        """
        best, values = array("i"), logits.numpy()
        for at, row in zip(found, places, strict=True):
            value = values[row, at] if at >= 0 else math.nan
            mine, other = value >= self.rest, value <= self.rest
            ahead = [self._ids[at]] * bool(mine) + [self._other] * bool(other)
            best.append(min(ahead, default=-1))
        return best
