"""The tensors of a GGUF file by transformers' names, as floating-point numbers."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from draftproof.gguf import blocks
from draftproof.gguf.names import FREQUENCIES, LONG, SHORT, stored_name
from draftproof.gguf.reader import File

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
READ = {"llama": (FREQUENCIES,), "phi3": (LONG, SHORT)}  # beside those that transformers names
UNUSED = "attn_rot_embd.weight"
LESS_ONE = ("gemma", "gemma2", "gemma3")  # norms, which files hold with one added
TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # of GPT-2: inputs first


class Tensors:
    """name -> tensor, read from the file each time. config: of the model."""

    def __init__(self, file: File, config: Any) -> None:
        self.file, self.config = file, config

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self.file.tensors

    def check(self, shapes: dict[str, list[int]]) -> None:
        """Raises `ValueError` unless these, by transformers' names, are all that the file holds."""
        wanted = {
            self._stored(name): shape[::-1] if self._is_turned(name) else shape
            for name, shape in shapes.items()
        }
        path, tensors = self.file.path, self.file.tensors
        if missing := wanted.keys() - tensors.keys():
            raise ValueError(f"{path} lacks {min(missing)}: it is damaged, or of another kind")
        known = {name for name in tensors if name.endswith(UNUSED)}
        known.update(READ.get(self.file.architecture, ()))
        if unknown := tensors.keys() - wanted.keys() - known:
            raise ValueError(
                f"{path} has {min(unknown)}, which no {self.file.architecture} model has"
            )
        for name, shape in wanted.items():
            if list(tensors[name].shape) != shape:
                raise ValueError(
                    f"{path}: {name} has the shape {list(tensors[name].shape)}, and its fields "
                    f"say {shape}: it is damaged"
                )

    def __getitem__(self, name: str) -> Tensor:
        """In the file's own floating type; float32 of what lies there in blocks."""
        stored = self.file.tensors[self._stored(name)]
        data = torch.from_numpy(stored.data.copy())
        if stored.kind in PLAIN:
            tensor = data.view(PLAIN[stored.kind]).view(stored.shape)
        elif stored.kind in blocks.KINDS:
            tensor = blocks.numbers(stored.kind, data).view(stored.shape)
        else:
            import gguf  # a quarter of a second, for those who have such a file

            rows = stored.data.reshape(*stored.shape[:-1], -1)
            kind = gguf.GGMLQuantizationType[stored.kind]
            tensor = torch.from_numpy(gguf.quants.dequantize(rows, kind))
        if self.file.architecture == "llama":
            tensor = self._in_halves(name, tensor)
        if self.file.architecture in LESS_ONE and name.endswith("norm.weight"):
            tensor = tensor.float() - 1
        return tensor.T if self._is_turned(name) else tensor

    def kind(self, name: str) -> str:
        """The type that a tensor is stored in."""
        return self.file.tensors[self._stored(name)].kind

    def shape(self, name: str) -> tuple[int, ...]:
        """Outputs first."""
        return self.file.tensors[self._stored(name)].shape

    def kinds(self) -> dict[str, int]:
        """Type -> bytes of all tensors of it."""
        found: Counter[str] = Counter()
        for stored in self.file.tensors.values():
            found[stored.kind] += stored.data.size
        return dict(found)

    def rows(self, name: str) -> Tensor:
        """(outputs, bytes of a row) The blocks of a matrix, a view of the file where it can be."""
        stored = self.file.tensors[self._stored(name)]
        with warnings.catch_warnings():  # that the view is not for writing
            warnings.simplefilter("ignore", UserWarning)
            rows = torch.from_numpy(stored.data).view(stored.shape[0], -1)
        return self._in_halves(name, rows) if self.file.architecture == "llama" else rows

    def let_go(self, module: str) -> None:
        """Pages of a module's tensors, or of all (""), leave memory; who looks reads them again."""
        names = [self._stored(f"{module}.{leaf}") for leaf in ("weight", "bias")]
        for name in names if module else self.file.tensors:
            if (stored := self.file.tensors.get(name)) is not None:
                stored.let_go()

    def factors(self) -> Tensor | None:
        """(head_dim / 2,) What rotary frequencies are divided by, if the file has such."""
        stored = self.file.tensors.get(FREQUENCIES)
        if stored is None:
            return None
        if stored.kind != "F32" or stored.shape != (self.config.head_dim // 2,):
            raise ValueError(f"{self.file.path}: {FREQUENCIES} is not as it should be: damaged")
        return torch.from_numpy(stored.data.copy()).view(torch.float32)

    def _stored(self, name: str) -> str:
        return stored_name(name, self.file.architecture)

    def _is_turned(self, name: str) -> bool:
        return self.file.architecture == "gpt2" and name.endswith(TURNED)

    def _in_halves(self, name: str, tensor: Tensor) -> Tensor:
        """Queries and keys of these files rotate neighbours; transformers rotates two halves."""
        heads = {
            "q_proj": self.config.num_attention_heads,
            "k_proj": self.config.num_key_value_heads,
        }.get(name.split(".")[-2])
        if heads is None:
            return tensor
        pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)
