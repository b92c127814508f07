"""Folders with heads, in the layouts that there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftproof.heads import files
from draftproof.heads.module import Heads
from fitted_heads import D, random

TENSORS = "model.safetensors"


def logits_of(heads: Heads, lm_head: Tensor) -> Tensor:
    with torch.no_grad():
        return heads.logits(random(5, D, seed=9, scale=1.0), lambda x: x @ lm_head.T)


SHAPES = [(1, True, True), (2, False, True), (1, False, False), (3, True, False)]
WRITERS: dict[str, Callable[..., None]] = {
    "ours": lambda folder, heads, lm_head: files.save(folder, heads),
    "original": files.export_original,
    "vllm": files.export_vllm,
}


def rename(file: Path, change: Callable[[str], str]) -> None:
    """The same tensors under other names."""
    if file.suffix == ".pt":
        tensors = torch.load(file, weights_only=True)
        torch.save({change(name): tensor for name, tensor in tensors.items()}, file)
    else:
        save_file({change(name): tensor for name, tensor in load_file(file).items()}, file)


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def in_two_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    first = {name: tensors.pop(name) for name in sorted(tensors)[:3]}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(tensors, folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors").unlink()


def as_safetensors(folder: Path) -> None:
    tensors = torch.load(folder / "medusa_lm_head.pt", weights_only=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    (folder / "medusa_lm_head.pt").unlink()
