"""Pairs of what an encoder reads and what a decoder writes: documents, what is held out, rows.

A row is one pair, since a decoder's row looks into one input. Does not know text or models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.training.data import rows
from draftproof.training.data.rows import Document, Rows


@dataclass(frozen=True, eq=False)
class PairRows(Rows):
    """R rows of L tokens that are written, from position 0 on, each behind an input of its own."""

    read: Tensor  # (R, E) int32; -1 where padded

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """As of `Rows`, and `read` (E,) int64."""
        return super().__getitem__(index) | {"read": self.read[index].long()}

    def fingerprint(self) -> str:
        """Of what is learnt, and of what is read."""
        digest = hashlib.sha256(super().fingerprint().encode())
        digest.update(self.read.numpy().tobytes())
        return digest.hexdigest()[:16]


def pack(documents: Sequence[Document], length: int) -> Rows:
    """Rows of any documents: a pair each where they are pairs, else see `rows.pack`.

    Of a pair what is written behind `length` tokens is cut off. Raises `ValueError` without any.
    """
    pairs = [(one.part(0, length), one.read) for one in documents if one.read is not None]
    if not pairs:
        return rows.pack(documents, length)
    shape = len(pairs), max(len(one.ids) for one, _ in pairs)
    ids, positions = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    segments, taught = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=bool)
    read = np.full((shape[0], max(len(given) for _, given in pairs)), -1, dtype=np.int32)
    positions[:] = np.arange(shape[1])
    for row, (one, given) in enumerate(pairs):
        place = slice(0, len(one.ids))
        ids[row, place], segments[row, place] = one.ids, row
        taught[row, place] = True if one.taught is None else one.taught
        read[row, : len(given)] = given
    return PairRows(*map(torch.from_numpy, (ids, positions, segments, taught, read)))


def split(
    documents: list[Document], share: float, seed: int = 0, least: int = 1
) -> tuple[list[Document], list[Document]]:
    """(to train on, held out) of any documents; pairs stay whole, and those that read the same too.

    About `share` of them, one at least. Raises `ValueError` where there is but one to read.
    """
    if not documents or documents[0].read is None:
        return rows.split(documents, share, seed, least)
    same: dict[bytes, list[int]] = {}
    for at, one in enumerate(documents):
        read = np.asarray(one.read, dtype="<i4").tobytes()
        same.setdefault(hashlib.sha256(f"{seed} ".encode() + read).digest(), []).append(at)
    if len(same) < 2:
        raise ValueError("all pairs read the same, so none can be held out: give others, or more")
    held: set[int] = set()
    for number, (_, members) in enumerate(sorted(same.items())):
        few = len(held) + len(members) / 2 <= share * len(documents)
        if number == 0 or (few and number < len(same) - 1):
            held.update(members)
    kept = [one for at, one in enumerate(documents) if at not in held]
    return kept, [documents[at] for at in sorted(held)]
