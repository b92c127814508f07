"""A toy language that every recipe can learn, next = (3 t + 1) mod V, and rows of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from draftproof.training.data.rows import Document, Rows, pack

V = 53


def cycle(begin: int, length: int) -> list[int]:
    """A text of the language."""
    ids = [begin % V]
    while len(ids) < length:
        ids.append((3 * ids[-1] + 1) % V)
    return ids


def learnt(model: Any, length: int, steps: int) -> Any:
    """The model, which knows the language after so many steps on texts of this length."""
    rows = torch.tensor([cycle(i, length) for i in range(V)])
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = model(rows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        adam.step()
        adam.zero_grad()
    assert float(loss.detach()) < 0.05
    return model.eval()


def rows_of(texts: list[list[int]], length: int, taught: Any = None) -> Rows:
    """The texts, packed; taught: of each, whether its tokens are learnt."""
    return pack([Document(ids, taught and taught[i]) for i, ids in enumerate(texts)], length)


def batch_of(texts: list[list[int]], length: int, taught: Any = None) -> dict[str, Tensor]:
    """All rows of the texts as one batch."""
    rows = rows_of(texts, length, taught)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Repeated(Dataset[Any]):
    """`count` rows of the given ones, over and over."""

    def __init__(self, rows: Rows, count: int) -> None:
        self.rows, self.count = rows, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index % len(self.rows)]
