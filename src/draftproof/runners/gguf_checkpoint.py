"""A GGUF file as a checkpoint: its blocks as they lie, or as floating-point numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.initialization import no_init_weights

from draftproof import configurations, native
from draftproof.gguf.configuration import configuration
from draftproof.gguf.names import HEAD
from draftproof.gguf.reader import read
from draftproof.gguf.weights import Tensors
from draftproof.runners import loading
from draftproof.runners.checkpoint import Checkpoint
from draftproof.runners.outline import Outline, outlined, shapes_of
from draftproof.runners.weights import Blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GgufCheckpoint(Checkpoint):
    """`Weights` that lie in a GGUF file. as_they_lie: blocks that the kernels know stay blocks."""

    def __init__(
        self,
        model: PreTrainedModel | Outline,
        tensors: Tensors,
        dtype: torch.dtype,
        as_they_lie: bool,
    ) -> None:
        super().__init__(model, {}, dtype)
        self.tensors, self.as_they_lie = tensors, as_they_lie
        self.tied = HEAD not in tensors
        self.paths = tensors.file.parts

    @property
    def precision(self) -> str | None:
        """Of most of its weights, where blocks are multiplied as they lie: the type's name."""
        kinds = self.tensors.kinds() if self.as_they_lie else {}
        known = {kind: size for kind, size in kinds.items() if kind in native.BLOCKS}
        return max(known, key=known.__getitem__).lower() if known else None

    @property
    def compared(self) -> bool:
        """Classes and configurations of GGUF files are our own choice: nothing hides in them."""
        return self.precision is None

    def format(self, name: str) -> int | None:
        kind = self.tensors.kind(self._place(name))
        return native.BLOCKS.get(kind) if self.as_they_lie else None

    def blocks(self, name: str) -> Blocks:
        place = self._place(name)
        kind, shape = self.tensors.kind(place), self.tensors.shape(place)
        return Blocks(native.BLOCKS[kind], self.tensors.rows(place), (shape[0], shape[1]))

    def drop(self, module: str) -> None:
        """Else pages of the file stay in memory beside what was packed of them."""
        self.tensors.let_go(module)

    def __contains__(self, name: str) -> bool:
        return self._place(name) in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self._place(name)].to(self.dtype)


def find(path: Path, *, dtype: torch.dtype | None, as_they_lie: bool = False) -> GgufCheckpoint:
    """The checkpoint; nothing of its tensors is read. dtype: of its numbers, None is bfloat16.

    Raises `ValueError`, in one sentence, for a file that is damaged or of another kind.
    """
    file = read(path)
    config, wanted = configuration(file), dtype or torch.bfloat16
    tensors = Tensors(file, config)
    model = outlined(config, wanted)
    tensors.check(
        {
            name: shape
            for name, shape in shapes_of(model).items()
            if not (name == HEAD and config.tie_word_embeddings)
        }
    )
    if isinstance(model, Outline) and (factors := tensors.factors()) is not None:
        model.inv_freq = model.inv_freq / factors
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id
    )
    return GgufCheckpoint(model, tensors, wanted, as_they_lie)


def load(path: Path, *, dtype: torch.dtype | None, device: torch.device) -> PreTrainedModel:
    """The model in memory. Raises `ValueError`, as `find`."""
    found = find(path, dtype=dtype)
    loading.refuse_what_has_no_room(found.model.num_parameters(), found.dtype)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            configurations.whole(found.config), dtype=found.dtype
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
            if not parameter.isfinite().all():
                raise ValueError(f"{path}: {name} has weights that are not finite: it is damaged")
    model.tie_weights()
    if isinstance(found.model, Outline):  # models that run on torch alone compute their own
        rotary: Any = model.model.rotary_emb
        rotary.inv_freq = found.model.inv_freq.clone()
    model.generation_config = found.model.generation_config
    placed: PreTrainedModel = torch.nn.Module.to(model, device).eval()
    return loading.with_caps(placed)
