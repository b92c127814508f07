"""From named tensors to packed weights, or the reason why not.

Takes models of Llama's shape only, known by their class: what else could hide in a class of that
shape, `runners.probe` finds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging

from draftproof import native
from draftproof.runners import reduced
from draftproof.runners.kv import available_bytes
from draftproof.runners.matrix import pack, reorder
from draftproof.runners.outline import Outline
from draftproof.runners.packed_files import PackedFile
from draftproof.runners.packed_formats import EMBEDDINGS, HEAD, MATRICES, Formats, rounded
from draftproof.runners.weights import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")
MOST_HEAD_DIM = 512
NORMS = {native.NORM_IN: "input_layernorm", native.NORM_POST: "post_attention_layernorm"}
QK_NORMS = {native.NORM_Q: "self_attn.q_norm", native.NORM_K: "self_attn.k_norm"}


def refusal(model: PreTrainedModel | Outline) -> str | None:
    """Why the native runner cannot take this model, in words that follow "because"; else None."""
    config, name = model.config.get_text_config(), type(model).__name__
    if not isinstance(model, Outline) and (
        name not in CLASSES or not type(model).__module__.startswith("transformers.")
    ):
        return f"{name} is not one of {', '.join(CLASSES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        return f"its rotary scaling is {rope}, not one of {', '.join(ROPES)}"
    dim = head_dim(config)
    if dim % 16 or dim > MOST_HEAD_DIM:
        return f"its heads have {dim} elements, not a multiple of 16 up to {MOST_HEAD_DIM}"
    if isinstance(model, Outline):
        return None  # the rest tells of modules, and whoever makes them makes them plain
    if model.model.rotary_emb.inv_freq.numel() != dim // 2:
        return "only a part of each head is rotated"
    for path, module in model.named_modules():
        if path.endswith(("_proj", "lm_head")) and type(module) is not torch.nn.Linear:
            return f"{path} is a {type(module).__name__}, not a plain linear layer"
    if model.device.type not in ("cpu", "meta"):  # meta: its weights are still in their files
        return f"it is on {model.device}"
    return None


def head_dim(config: Any) -> int:
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


class Packed:
    """A model in the layout of the kernels; owns that memory.

    precision: what numbers are rounded to, or a format for each kind of matrix, of which those that
    are missing are bfloat16; what lies in a file in blocks of whole numbers stays as it is.
    cached: they are mapped from the user's cache folder, if they are there as they should be; else
    `keep` writes them there. mapped: whether they were.
    Raises `ValueError` for weights that are not finite, `MemoryError` where there is no room.
    """

    def __init__(
        self,
        weights: Weights,
        precision: str | Mapping[int, int],
        *,
        kernels: str = "",
        cached: bool = False,
    ) -> None:
        config, self.library = weights.config, native.library()
        frequencies, rope_scale = weights.rotary()
        self.shape = native.Shape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim(config),
            intermediate=config.intermediate_size,
            vocabulary=config.vocab_size,
            has_qk_norm=int("model.layers.0.self_attn.q_norm.weight" in weights),
            eps=config.rms_norm_eps,
            rope_scale=rope_scale,
            attention_scale=head_dim(config) ** -0.5,
        )
        self.kept = self._kept(weights)
        if self.kept is not None:
            self.shape.outputs = len(self.kept)
        self.formats = Formats(self.shape, weights, precision)
        formats = native.formats(self.shape.layers, self.formats.of)
        self.bytes = int(self.library.dp_model_bytes(ctypes.byref(self.shape), formats))
        if self.bytes == native.NO_MEMORY:
            raise MemoryError("no memory to lay out the model's weights")
        assert self.bytes >= 0, "formats that cannot stand side by side"
        self.kernels = kernels or native.kernels()
        self.file = self._file(weights, formats) if cached and weights.paths else None
        self._lying = None if self.file is None else self.file.mapped(self.bytes)
        self.mapped = self._lying is not None
        room = available_bytes(torch.device("cpu"))
        if room is not None and self.bytes > room and not self.mapped:
            raise MemoryError(
                f"the packed weights take {_giga(self.bytes)} and {_giga(room)} are free: "
                f"{self._smaller(room)}"
            )
        of = ctypes.byref(self.shape), formats, self.kernels.encode()
        if self._lying is None:
            self.handle = self.library.dp_model_new(*of)
        else:
            self.handle = self.library.dp_model_over(*of, self._lying.ctypes.data)
        if not self.handle:
            raise MemoryError(f"no memory for {self.bytes:,} bytes of packed weights")
        native.owned(self, self.library.dp_model_free, self.handle)
        self._vector(native.INV_FREQ, 0, frequencies, "inv_freq")
        self._pack(weights)

    def _kept(self, weights: Weights) -> Tensor | None:
        """The tokens whose rows of the head are packed; None: all."""
        lies = f"{HEAD}.weight"
        if not getattr(weights.config, reduced.FIELD, None) or weights.tied:
            return None
        if f"{HEAD}.bias" in weights or weights.format(lies) is not None:
            return None
        return reduced.kept(weights[lies])

    @property
    def outputs(self) -> int:
        """Rows of the head."""
        return int(self.shape.outputs or self.shape.vocabulary)

    def keep(self) -> bool:
        """Write the weights into the cache folder, where that was asked for and they are not."""
        if self.file is None or self.mapped:
            return False
        at = self.library.dp_model_packed(self.handle)
        size = self.bytes - (0 if self._embeddings is None else self._embeddings.nbytes)
        return self.file.write(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at)))

    def _file(self, weights: Weights, formats: Any) -> PackedFile:
        kind = {"precision": str(self.formats.precision), "kernels": self.kernels}
        blocks = self.formats.all_in_blocks()
        built = native.file().stat()
        about = {
            "formats": [*formats],
            "shape": bytes(self.shape).hex(),
            "version": [metadata.version(each) for each in ("draftproof", "transformers")],
            "library": [native.VERSION, built.st_size, built.st_mtime_ns],
        }
        lies = {"blocks": blocks, "dtype": str(weights.dtype)}
        return PackedFile(weights.paths, kind | lies, about)

    def _smaller(self, room: int) -> str:
        """What to do where these weights do not fit."""
        for precision in ("int8", "int4"):
            least = native.formats(self.shape.layers, partial(rounded, precision))
            needed = int(self.library.dp_model_bytes(ctypes.byref(self.shape), least))
            if needed < min(room, self.bytes):
                return f"dtype={precision!r} takes {_giga(needed)}"
        return "use a smaller model, or free some"

    def _pack(self, weights: Weights) -> None:
        self._vector(native.NORM_LAST, 0, weights["model.norm.weight"], "norm")
        norms = NORMS | (QK_NORMS if self.shape.has_qk_norm else {})
        layers = range(self.shape.layers)
        for number in logging.tqdm(layers, "Packing weights") if weights.in_files else layers:
            at = f"model.layers.{number}"
            for which, path in MATRICES.items():
                self._matrix(which, number, weights, f"{at}.{path}", f"layer {number} {path}")
                weights.drop(f"{at}.{path}")
            for which, path in norms.items():
                self._vector(which, number, weights[f"{at}.{path}.weight"], f"layer {number} norm")
            window = window_of(weights.config, number)
            self._vector(native.WINDOW, number, torch.tensor([float(window)]), "window")
        self._matrix(native.HEAD, 0, weights, HEAD, "lm_head")
        if not weights.tied:
            weights.drop(HEAD)
        packed = self.formats.of(native.EMBEDDINGS, 0) >= 0
        if packed:
            self._matrix(native.EMBEDDINGS, 0, weights, EMBEDDINGS, "embed_tokens")
        self._embeddings = None if packed else weights.embeddings()
        if self._embeddings is not None:
            if tuple(self._embeddings.shape) != (self.shape.vocabulary, self.shape.hidden):
                _check(native.BAD_ARGUMENT, "embed_tokens")
            if not self._embeddings.sum(dtype=torch.float32).isfinite():
                _check(native.NOT_FINITE, "embed_tokens")
            self.bytes += self._embeddings.numel() * 2
            self.library.dp_model_embeddings(self.handle, self._embeddings.data_ptr())
        weights.drop("")  # one view that is left would keep the file's pages too

    def _matrix(self, which: int, layer: int, weights: Weights, path: str, name: str) -> None:
        lies = f"{path}.weight"
        in_blocks = self.formats.in_blocks(which, layer)
        if not self.mapped:
            weight = weights.blocks(lies) if in_blocks else weights[lies]
            if which == native.HEAD and self.kept is not None:
                assert isinstance(weight, Tensor)
                weight = weight[self.kept]
            _check(pack(self.handle, which, layer, weight), name)
        elif in_blocks:  # which is no part of the bytes that are mapped
            _check(reorder(self.handle, which, layer, weights.order(lies)), name)
        if f"{path}.bias" in weights:
            bias = _floats(weights[f"{path}.bias"])
            args = self.handle, which, layer, bias.data_ptr(), len(bias)
            _check(self.library.dp_model_bias(*args), f"{name} bias")

    def _vector(self, which: int, layer: int, values: Tensor, name: str) -> None:
        data = _floats(values)
        args = self.handle, which, layer, data.data_ptr(), data.numel()
        _check(self.library.dp_model_vector(*args), name)


def window_of(config: Any, layer: int) -> int:
    """Positions that attention of a layer reaches back, itself included; 0 for all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] != "sliding_attention":
        return 0
    return int(getattr(config, "sliding_window", None) or 0)


def _giga(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


def _floats(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float32).contiguous()


def _check(code: int, name: str) -> None:
    if code == native.NO_MEMORY:
        raise MemoryError(f"no memory to pack the weights of {name}: use a smaller model")
    if code == native.NOT_FINITE:
        raise ValueError(
            f"the weights of {name} hold NaN or infinity, or more than their format can: the "
            "checkpoint is damaged"
        )
    if code != native.OK:
        raise ValueError(f"the weights of {name} have another shape than the configuration says")
