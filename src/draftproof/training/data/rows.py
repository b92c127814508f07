"""Documents of token ids become packed rows, in an order that can be resumed.

What is held out is chosen here too. Does not know text, tokenizers, models, or what is trained.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Document:
    """Token ids (N,), and of each whether it is learnt (None: all are).

    read: what an encoder reads, where these are what is written then.
    """

    ids: Sequence[int]
    taught: Sequence[bool] | None = None
    read: Sequence[int] | None = None

    def part(self, begin: int, end: int) -> Document:
        """Tokens `begin` to `end`, without the last."""
        taught = None if self.taught is None else self.taught[begin:end]
        return Document(self.ids[begin:end], taught, self.read)

    def learnt(self) -> np.ndarray:
        """Places of the tokens that are learnt, int64, ascending."""
        if self.taught is None:
            return np.arange(len(self.ids))
        return np.flatnonzero(np.asarray(self.taught, dtype=bool))


def split(
    documents: list[Document], share: float = 0.05, seed: int = 0, least: int = 1
) -> tuple[list[Document], list[Document]]:
    """(to train on, held out): about `share` of what is learnt, chosen by a hash of the content.

    The choice does not depend on the order, and equal documents stay together. Where every
    document is much larger than the share, the end of the largest is cut off and held out. A text
    of `least` tokens is held out where one is long enough to leave as many.

    Raises `ValueError` for under 2 learnt tokens.
    """
    if not 0 < share < 1:
        raise ValueError(f"the held-out share must lie between 0 and 1, not {share}")
    sizes = [len(document.learnt()) for document in documents]
    total = sum(sizes)
    if total < 2:
        raise ValueError(f"{total} tokens to learn are too few to hold some out: give more data")
    same: dict[bytes, list[int]] = {}
    for at, document in enumerate(documents):
        ids = np.asarray(document.ids, dtype="<i4").tobytes()
        same.setdefault(hashlib.sha256(f"{seed} ".encode() + ids).digest(), []).append(at)
    budget, taken = share * total, 0
    held: set[int] = set()
    for _, members in sorted(same.items()):
        size = sum(sizes[at] for at in members)
        if size and taken + size / 2 <= budget and taken + size < total:
            held.update(members)
            taken += size
    if not held and len(same) > 1 and max(sizes) < 2:  # prompts alone, of which none can be cut
        held.update(min(same.items())[1])
    size, _, at = max((sizes[members[0]], key, members[0]) for key, members in same.items())
    apart = size >= 2 * least
    if held and (not apart or any(len(documents[at].ids) >= least for at in held)):
        kept = [document for at, document in enumerate(documents) if at not in held]
        return kept, [documents[at] for at in sorted(held)]
    last = documents[at]
    count = 1 if held else min(max(1, round(budget)), max(1, size - 1))
    count = max(count, least) if apart else count
    cut = int(last.learnt()[-count])
    kept = [*documents[:at], *([last.part(0, cut)] if cut else []), *documents[at + 1 :]]
    return kept, [last.part(cut, len(last.ids))]


@dataclass(frozen=True, eq=False)
class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """R packed rows of L tokens.

    Positions begin at 0 with every piece of a document, and so does the padding behind the last:
    by that transformers keeps attention within a piece (no mask and no cache given).
    """

    ids: Tensor  # (R, L) int32; 0 where padded
    positions: Tensor  # (R, L) int32
    segments: Tensor  # (R, L) int32: number of the piece, in the order of the data; -1 padding
    taught: Tensor  # (R, L) bool: whether the token is learnt

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One row: `ids`, `positions`, `segments` (L,) int64 and `taught` (L,) bool."""
        return {
            "ids": self.ids[index].long(),
            "positions": self.positions[index].long(),
            "segments": self.segments[index].long(),
            "taught": self.taught[index],
        }

    @property
    def tokens(self) -> int:
        """Tokens in all rows, without padding."""
        return int((self.segments >= 0).sum())

    def fingerprint(self) -> str:
        """Of what is learnt: tokens, where texts end, and which of them count."""
        digest = hashlib.sha256()
        for tensor in (self.ids, self.segments, self.taught):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()[:16]


def pack(documents: Sequence[Document], length: int, minimum: int = 2) -> Rows:
    """Rows of `length` tokens; less data than that makes rows as long as its longest document.

    Longer documents are cut. Pieces under `minimum` tokens are dropped, and those in which
    nothing is learnt behind the first token; they stay if there are no others.

    Raises `ValueError` without any token.
    """
    if length < 1:
        raise ValueError(f"rows of {length} tokens hold nothing: give a length of at least 1")
    longest = max((len(document.ids) for document in documents), default=0)
    if not longest:
        raise ValueError("there are no tokens to train on: name other data")
    if sum(len(document.ids) for document in documents) < length:
        length = longest
    starts = (
        (document, at) for document in documents for at in range(0, len(document.ids), length)
    )
    pieces = [document.part(at, at + length) for document, at in starts]
    teaching = [p for p in pieces if p.taught is None or any(p.taught[1:])]
    pieces = [piece for piece in teaching if len(piece.ids) >= minimum] or pieces
    rows = _fitted([len(piece.ids) for piece in pieces], length)
    shape = (len(rows), length)
    ids, positions = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    segments, taught = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=bool)
    for row, numbers in enumerate(rows):
        end = 0
        for number in numbers:
            piece = pieces[number]
            place = slice(end, end + len(piece.ids))
            ids[row, place] = piece.ids
            segments[row, place] = number
            taught[row, place] = True if piece.taught is None else piece.taught
            positions[row, place] = np.arange(len(piece.ids))
            end = place.stop
        positions[row, end:] = np.arange(length - end)
    return Rows(*map(torch.from_numpy, (ids, positions, segments, taught)))


def batch_of(rows: Rows, at: int) -> dict[str, Tensor]:
    """One row as a batch."""
    return {name: tensor[None] for name, tensor in rows[at].items()}


class Stream(torch.utils.data.Dataset[dict[str, Tensor]]):
    """`count` rows: every row once an epoch, each epoch in another order.

    What stands at an index depends on (seed, index) alone, so training resumes where it stopped.
    """

    def __init__(self, rows: Rows, count: int, seed: int) -> None:
        self._rows, self._count, self._seed = rows, count, seed
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        epoch, at = divmod(index, len(self._rows))
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))
            self._epoch = epoch
        return self._rows[int(self._order[at])]


def _fitted(sizes: list[int], length: int) -> list[list[int]]:
    """Rows of the numbers of pieces: the largest first, each where the least room is left."""
    rows: list[list[int]] = []
    room: dict[int, list[int]] = {}  # tokens left -> rows with so many left
    rooms: list[int] = []  # the keys of `room`, ascending
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        at = bisect_left(rooms, sizes[number])
        if at < len(rooms):
            left = rooms[at]
            row = room[left].pop()
            if not room[left]:
                del room[left], rooms[at]
            rows[row].append(number)
        else:
            left, row = length, len(rows)
            rows.append([number])
        left -= sizes[number]
        if left and left not in room:
            insort(rooms, left)
        if left:
            room.setdefault(left, []).append(row)
    return rows
