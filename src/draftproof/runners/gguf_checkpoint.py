"""A GGUF file as a checkpoint: its blocks as they lie, or as floating-point numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from draftproof import native
from draftproof.gguf.configuration import CONFIGS, configuration
from draftproof.gguf.names import HEAD
from draftproof.gguf.reader import read
from draftproof.gguf.weights import Tensors
from draftproof.runners import loading
from draftproof.runners.checkpoint import Checkpoint
from draftproof.runners.weights import Blocks


class GgufCheckpoint(Checkpoint):
    """`Weights` that lie in a GGUF file. as_they_lie: blocks that the kernels know stay blocks."""

    def __init__(
        self, model: PreTrainedModel, tensors: Tensors, dtype: torch.dtype, as_they_lie: bool
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
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=wanted)
    tensors.check(
        {
            name: list(tensor.shape)
            for name, tensor in model.state_dict().items()
            if not (name == HEAD and config.tie_word_embeddings)
        }
    )
    _rotate(model, tensors)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id
    )
    return GgufCheckpoint(model.eval(), tensors, wanted, as_they_lie)


def load(path: Path, *, dtype: torch.dtype | None, device: torch.device) -> PreTrainedModel:
    """The model in memory. Raises `ValueError`, as `find`."""
    found = find(path, dtype=dtype)
    loading.refuse_what_has_no_room(found.model.num_parameters(), found.dtype)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(found.config, dtype=found.dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
            if not parameter.isfinite().all():
                raise ValueError(f"{path}: {name} has weights that are not finite: it is damaged")
    model.tie_weights()
    _rotate(model, found.tensors)
    model.generation_config = found.model.generation_config
    placed: PreTrainedModel = torch.nn.Module.to(model, device).eval()
    return loading.with_caps(placed)


def _rotate(model: PreTrainedModel, tensors: Tensors) -> None:
    """Frequencies, which a meta device does not compute; divided by what the file says.

    Models that run on torch alone compute their own.
    """
    if tensors.file.architecture not in CONFIGS:
        return
    made = type(model.model.rotary_emb)(config=tensors.config)
    factors = tensors.factors()
    if factors is not None:
        made.inv_freq = made.inv_freq / factors
    model.model.rotary_emb = made
