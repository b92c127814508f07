"""A draft that writes few of the target's tokens: its LM head, most of a small model, shrinks.

The head keeps its shape, so that any engine loads it; rows of the other tokens are zeros, which
nobody needs to multiply (`runners.reduced`). Heads have a copy of those rows alone. FR-Spec, Zhao
et al. 2025 (arXiv 2502.14856), leaves the others out of the softmax instead, as heads do. Does not
know how a draft begins or what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftproof.heads.module import Heads
from draftproof.runners import encoders, reduced
from draftproof.runners.torch import SCALES
from draftproof.training.data.rows import Document


def most_frequent(
    documents: Sequence[Document], count: int, size: int, always: Iterable[int] = ()
) -> Tensor:
    """Ids (count,), ascending: `always`, then those that are learnt most often; of `size`."""
    often = np.zeros(size, dtype=np.int64)
    for document in documents:
        ids = np.asarray(document.ids, dtype=np.int64)
        np.add.at(often, ids[document.learnt()], 1)
    for token in always:
        often[token] = np.iinfo(np.int64).max
    return torch.from_numpy(np.sort(np.argsort(-often, kind="stable")[:count]))


def check_target(target: Any, count: int) -> None:
    """`ValueError` where so few tokens would save nothing, or could not be had."""
    if encoders.is_one(target):
        raise ValueError(
            "--draft-vocabulary spares the native runner work, and that runs no "
            "encoder-decoders: drop it"
        )
    size = len(_plain(target))
    if not 0 < count < size:
        raise ValueError(f"--draft-vocabulary {count} must be below the target's {size} tokens")
    config = target.config.get_text_config()
    for name in SCALES:
        if getattr(config, name, None) not in (None, 1.0):
            raise ValueError(f"the target's {name} is not in its LM head: drop --draft-vocabulary")


def reduce(student: Any, ids: Tensor) -> None:
    """Give the student an LM head of its own, zeros but for the rows of these ids (R,)."""
    config, head = student.config.get_text_config(), _plain(student)
    weight = torch.zeros_like(head)
    weight[ids] = head[ids]
    config.tie_word_embeddings = student.config.tie_word_embeddings = False
    fresh = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    fresh.weight = nn.Parameter(weight)
    student.set_output_embeddings(fresh)
    setattr(config, reduced.FIELD, len(ids))


def fewer(heads: Heads, target: Any, ids: Tensor, own: bool = False) -> Heads:
    """The heads with these rows (R,) of the target's LM head, one copy for all; own: for each."""
    rows = _plain(target)[ids.to(target.device)].to(heads.weights.dtype, copy=True)
    fewer = Heads(
        heads.weights.detach(),
        None if heads.biases is None else heads.biases.detach(),
        rows.expand(heads.heads if own else 1, *rows.shape).clone(),
        vocab_size=heads.vocab_size,
        tokens=ids,
        target=heads.target,
        exit=heads.exit,
    )
    assert fewer.outputs is not None
    fewer.outputs.requires_grad_(own)
    return fewer


def _plain(model: Any) -> Tensor:
    """The matrix (V, d) of its LM head, without gradients."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(
            f"the LM head of {type(model).__name__} is no plain matrix: drop --draft-vocabulary"
        )
    return head.weight.detach()


class FewTokens:
    """Laws over the ids (R,) and one more class, which is all other tokens of `size` together."""

    def __init__(self, ids: Tensor, size: int) -> None:
        others = torch.ones(size, dtype=torch.bool)
        others[ids] = False
        self.ids, self.others = ids, others.nonzero()[:, 0]
        self._classes = torch.full((size,), len(ids))
        self._classes[ids] = torch.arange(len(ids))
        self._rest = math.log(len(self.others))  # of as many logits of 0

    def labels(self, labels: Tensor) -> Tensor:
        """The classes of tokens."""
        return self._classes.to(labels.device)[labels]

    def student(self, model: Any) -> Callable[[Tensor], Tensor]:
        """What makes its logits (N, R + 1) of its states (N, d)."""
        weight = model.get_output_embeddings().weight
        weight = weight[self.ids.to(weight.device)]

        def head(states: Tensor) -> Tensor:
            rest = states.new_full((*states.shape[:-1], 1), self._rest)
            return torch.cat((F.linear(states, weight), rest), -1)

        return head

    def teacher(self, head: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same of a model that has logits for all tokens."""

        def grouped(states: Tensor) -> Tensor:
            logits = head(states).float()
            rest = logits[..., self.others].logsumexp(-1, keepdim=True)
            return torch.cat((logits[..., self.ids], rest), -1)

        return grouped
