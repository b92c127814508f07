"""Where packed weights come from: tensors by the names of a checkpoint, one at a time.

A loaded model is one such source; whoever packs never sees a module. Knows no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Blocks(NamedTuple):
    """A matrix (out, in) as it lies in a file, or as the kernels read what lies there."""

    format: int  # of `native`
    data: Tensor  # (out, bytes of a row), uint8
    shape: tuple[int, int]
    order: Tensor | None = None  # (in,) int32: the input that each one stands for; None: its own


class Weights(Protocol):
    """The tensors of a model of Llama's shape, by the names that transformers gives them."""

    config: Any  # of the text model
    in_files: bool  # reading takes as long as a disk does
    paths: Sequence[Path]  # of those files; empty: they are in memory

    @property
    def dtype(self) -> torch.dtype:
        """Of tensors, as they are read."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head's weights are the embeddings."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> Tensor:
        """A tensor in any floating type; the caller copies what it keeps."""
        ...

    def format(self, name: str) -> int | None:
        """Of a matrix whose blocks are to be multiplied as they lie; None: it is numbers."""
        ...

    def order(self, name: str) -> Tensor | None:
        """Of such blocks, see `Blocks.order`."""
        ...

    def blocks(self, name: str) -> Blocks:
        """A matrix that has a format."""
        ...

    def drop(self, module: str) -> None:
        """Nothing of that module ("": of the model) is asked for again: its memory may go."""
        ...

    def embeddings(self) -> Tensor | None:
        """(vocabulary, hidden) in bfloat16, used where they lie; None: the head is tied to them."""
        ...

    def rotary(self) -> tuple[Tensor, float]:
        """Inverse frequencies (head_dim / 2), and what cosines and sines are scaled by."""
        ...


class LoadedWeights:
    """`Weights` of a loaded model. release: it is ours, so tensors go when they are dropped."""

    in_files = False
    paths: Sequence[Path] = ()

    def __init__(self, model: PreTrainedModel, *, release: bool = False) -> None:
        self.model, self.release = model, release
        self.config: Any = model.config.get_text_config()
        self.dtype = model.dtype

    @property
    def tied(self) -> bool:
        head, embeddings = self["lm_head.weight"], self["model.embed_tokens.weight"]
        return head.data_ptr() == embeddings.data_ptr()

    def __contains__(self, name: str) -> bool:
        try:
            return isinstance(self[name], Tensor)
        except AttributeError:
            return False

    def __getitem__(self, name: str) -> Tensor:
        path, _, leaf = name.rpartition(".")
        tensor: Tensor = getattr(self.model.get_submodule(path), leaf)
        return tensor

    def format(self, name: str) -> int | None:
        return None

    def order(self, name: str) -> Tensor | None:
        return None

    def blocks(self, name: str) -> Blocks:
        raise KeyError(name)

    def drop(self, module: str) -> None:
        for parameter in self.model.get_submodule(module).parameters() if self.release else ():
            parameter.data = parameter.data.new_empty(0)

    def embeddings(self) -> Tensor | None:
        if self.tied:
            return None
        weight = self["model.embed_tokens.weight"].detach()
        # A copy, or it would keep the whole checkpoint's memory alive.
        return weight.to(torch.bfloat16, copy=self.release).contiguous()

    def rotary(self) -> tuple[Tensor, float]:
        # The model's own, so that every scaling that is fixed at load is right.
        rotary: Any = self.model.get_submodule("model.rotary_emb")
        return rotary.inv_freq, float(rotary.attention_scaling)
