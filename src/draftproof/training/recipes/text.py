"""The recipe that teaches a model texts, from the first token on: what drafts and heads are for.

Matrices learn by Muon (Jordan et al. 2024), the rest by AdamW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from draftproof.training.data.states import labelled, logits_of, on, states_of
from draftproof.training.recipes.losses import cross_entropy
from draftproof.training.recipes.muon import Muon
from draftproof.training.trainer import Batch

MATRICES_RATE, RATE, DECAY = 4e-3, 3e-3, 0.05


class Text(nn.Module):
    """The loss of a model: cross-entropy of the next token, nats.

    rate: a factor of both learning rates. held_out: batches to evaluate on.
    """

    def __init__(self, model: Any, held_out: Sequence[Batch], rate: float = 1.0) -> None:
        super().__init__()
        self.model, self.held_out, self.rate = model, held_out, rate

    def optimisers(self) -> list[Optimizer]:
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
        return [
            Muon(matrices, MATRICES_RATE * self.rate, DECAY),
            AdamW(rest, RATE * self.rate, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
        ]

    def forward(self, batch: Batch, share: float) -> dict[str, Tensor]:
        """`right`: how often the likeliest token came."""
        at, labels = labelled(batch, 1)
        states = states_of(self.model, batch).flatten(0, 1)[at]
        loss, right = cross_entropy(states, labels, lambda rows: logits_of(self.model, rows))
        count = max(1, len(labels))
        learnt = loss.new_tensor(len(labels))
        return {"loss": loss / count, "labels": learnt, "right": right / count}

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """`loss` on the held-out text, and `score`, which is its opposite."""
        scores = [self(on(batch, device), 1.0) for batch in self.held_out]
        loss = sum(float(one["loss"] * one["labels"]) for one in scores)
        mean = loss / max(1.0, sum(float(one["labels"]) for one in scores))
        return {"score": -mean, "loss": mean}
