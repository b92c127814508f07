"""Checkpoints of four bits, written and read from the definition of each layout, word by word.

Knows none of the package's code: what is written here is what AutoAWQ, GPTQModel and
compressed-tensors write.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

Array = NDArray[Any]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight outputs the next four bits of a word are


@dataclass(frozen=True)
class Layout:
    """group: inputs, 0 is all of them. act_order: inputs of a group lie anywhere."""

    method: str
    group: int
    symmetric: bool = False
    version: int = 1
    act_order: bool = False
    scales: torch.dtype = torch.float16

    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        size = self.group or -1
        if self.method == "awq":
            return {
                "quant_method": "awq",
                "bits": 4,
                "group_size": size,
                "version": "gemm",
                "zero_point": True,
                "modules_to_not_convert": None,
            }
        if self.method == "gptq":
            return {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": size,
                "desc_act": self.act_order,
                "sym": self.symmetric,
                "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
            }
        weights = {
            "num_bits": 4,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "group" if self.group else "channel",
            "group_size": self.group or None,
            "actorder": "group" if self.act_order else None,
            "dynamic": False,
        }
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "quantization_status": "compressed",
        }


@dataclass(frozen=True)
class Rounded:
    """A matrix in whole numbers: a weight is scales[o, of[i]] * (integers[o, i] - zeros[o, of[i]])."""

    integers: Array  # (out, in)
    zeros: Array  # (out, groups)
    scales: Tensor  # (out, groups)
    of: Array  # (in,)

    def numbers(self) -> Tensor:
        """(out, in) in float32."""
        less = torch.from_numpy(self.integers - self.zeros[:, self.of]).float()
        return less * self.scales.float()[:, self.of]


def rounded(weight: Tensor, layout: Layout, seed: int = 0) -> Rounded:
    """To the nearest, by groups."""
    outputs, inputs = weight.shape
    size = layout.group or inputs
    of = np.arange(inputs) // size
    if layout.act_order:  # the same for all matrices of one width, as one calibration gives
        of = of[np.random.default_rng(seed + inputs).permutation(inputs)]
    groups = int(of.max()) + 1
    w = weight.float().numpy()
    scales, zeros = np.zeros((outputs, groups), np.float32), np.full((outputs, groups), 8)
    for g in range(groups):
        part = w[:, of == g]
        if layout.symmetric:
            scales[:, g] = np.abs(part).max(1) / 7
        else:
            least, most = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, g] = (most - least) / 15
            zeros[:, g] = np.clip(np.round(-least / np.maximum(scales[:, g], 1e-9)), 0, 15)
    kept = torch.from_numpy(scales).clamp(min=1e-5).to(layout.scales)
    steps = w / kept.float().numpy()[:, of] + zeros[:, of]
    return Rounded(np.clip(np.round(steps), 0, 15).astype(np.int64), zeros, kept, of)


def _words(rows: Array, places: list[int]) -> Tensor:
    """(rows, n) -> (rows, ceil(n / 8)) words: four bits each, the lowest first."""
    made = np.zeros((rows.shape[0], -(-rows.shape[1] // 8)), np.uint64)
    for column in range(made.shape[1]):
        for place, of in enumerate(places):
            if column * 8 + of < rows.shape[1]:
                made[:, column] |= rows[:, column * 8 + of].astype(np.uint64) << np.uint64(4 * place)
    return torch.from_numpy(made.astype(np.uint32).view(np.int32))


def tensors(given: Rounded, layout: Layout) -> dict[str, Tensor]:
    """What a file holds of a matrix, by the ends of the names."""
    natural, of = list(range(8)), torch.from_numpy(given.of).int()
    if layout.method == "awq":
        return {
            "qweight": _words(given.integers.T, AWQ_ORDER),
            "qzeros": _words(given.zeros.T, AWQ_ORDER),
            "scales": given.scales.T,
        }
    if layout.method == "gptq":
        zeros = _words(given.zeros.T, natural)
        if layout.version == 1:  # of a word as one number: a zero of 0 borrows from the next
            less = zeros.numpy().view(np.uint32) - np.uint32(0x11111111)
            zeros = torch.from_numpy(less.view(np.int32))
        return {
            "qweight": _words(given.integers, natural).T,
            "qzeros": zeros,
            "scales": given.scales.T,
            "g_idx": of,
        }
    made = {
        "weight_packed": _words(given.integers, natural),
        "weight_scale": given.scales,
        "weight_shape": torch.tensor(given.integers.shape),
    }
    if not layout.symmetric:
        made["weight_zero_point"] = _words(given.zeros.T, natural).T
    if layout.act_order:
        made["weight_g_idx"] = of
    return made


def decoded(stored: dict[str, Tensor], layout: Layout, output: int, index: int) -> float:
    """One weight, by the layout's definition: see the words of its makers' own kernels."""
    word, at, zero_word, zero_at = {
        "awq": (stored.get("qweight"), AWQ_ORDER.index(output % 8), "qzeros", AWQ_ORDER),
        "gptq": (stored.get("qweight"), index % 8, "qzeros", list(range(8))),
    }.get(layout.method, (stored.get("weight_packed"), index % 8, "weight_zero_point", None))
    assert word is not None
    where = {"awq": (index, output // 8), "gptq": (index // 8, output)}.get(
        layout.method, (output, index // 8)
    )
    integer = int(word[where]) >> 4 * at & 15
    for name in ("g_idx", "weight_g_idx"):
        group = int(stored[name][index]) if name in stored else index // (layout.group or 1 << 30)
        if name in stored:
            break
    if zero_at is not None:
        packed = int(stored[zero_word][group, output // 8]) & 0xFFFFFFFF
        if layout.method == "gptq" and layout.version == 1:
            packed = packed + 0x11111111 & 0xFFFFFFFF
        zero = packed >> 4 * zero_at.index(output % 8) & 15
        scale = float(stored["scales"][group, output])
    else:
        scale, zero = float(stored["weight_scale"][output, group]), 8
        if zero_word in stored:
            zero = int(stored[zero_word][output // 8, group]) >> 4 * (output % 8) & 15
    return scale * (integer - zero)


def write(folder: Path, made: PreTrainedModel, layout: Layout) -> PreTrainedModel:
    """A model as such a checkpoint; the model in float32 with the weights that it says."""
    says = copy.deepcopy(made).float()
    held: dict[str, Tensor] = {}
    for name, tensor in made.state_dict().items():
        path = name.removesuffix(".weight")
        if not path.endswith("_proj"):
            if name != "lm_head.weight" or not made.config.tie_word_embeddings:
                held[name] = tensor.clone()
            continue
        each = rounded(tensor, layout)
        says.get_submodule(path).weight.data = each.numbers()
        held |= {f"{path}.{part}": value for part, value in tensors(each, layout).items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in held.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads(made.config.to_json_string(use_diff=False))
    config["architectures"] = [type(made).__name__]
    config["quantization_config"] = layout.config()
    (folder / "config.json").write_text(json.dumps(config))
    return says.eval()
