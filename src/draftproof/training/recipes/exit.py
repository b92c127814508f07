"""A head on one of the target's layers in the middle, as a student that `draft` can teach.

Blocks that only the draft reads, before the target's own LM head: the target stays what it is.
Kangaroo, Liu et al. 2024 (arXiv 2404.18911), whose adapter is a layer with attention.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.heads.module import Heads
from draftproof.runners import altering, encoders
from draftproof.training.guards import shallower
from draftproof.training.recipes.student import depth_of


class Exit(nn.Module):
    """What recipes ask of a student: its states come from the target's first layers."""

    def __init__(self, target: Any, heads: Heads) -> None:
        super().__init__()
        assert heads.exit is not None
        self.heads, self.layers = heads, heads.exit
        self._frozen = (target,)  # no module of this one: not moved, trained or checkpointed

    @property
    def config(self) -> Any:
        return self._frozen[0].config

    @property
    def owner(self) -> Any:
        """The model whose layer this is on, and whose head reads its states."""
        return self._frozen[0]

    def get_output_embeddings(self) -> Any:
        return self._frozen[0].get_output_embeddings()

    def get_decoder(self) -> Exit:
        return self

    def get_encoder(self) -> Any:
        return self._frozen[0].get_encoder()

    def forward(self, **inputs: Tensor) -> Any:
        """`last_hidden_state` (rows, L, d), which the LM head reads."""
        target = self._frozen[0]
        decoder = target.get_decoder()
        if encoders.is_one(target):
            whole = depth_of(target)
            with torch.no_grad():
                out = altering.ending(decoder, whole, self.layers, lambda: decoder(**inputs))
            states = out.last_hidden_state
        else:
            with torch.no_grad(), shallower(target.config.get_text_config(), self.layers):
                states = decoder(**inputs).last_hidden_state
        blocks = self.heads(states.flatten(0, 1))[0]
        return SimpleNamespace(last_hidden_state=blocks.unflatten(0, states.shape[:2]))
