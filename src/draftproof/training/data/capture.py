"""Hidden states on disk: the frozen target runs over every row once, not once an epoch.

One shard a group of rows; a shard is written under another name first, so what is there is whole,
and capturing that was cut short goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

from draftproof.training.checkpoint import replacing
from draftproof.training.data.states import on, states_of
from draftproof.training.trainer import Batch
from draftproof.training.watch import Watch

SHARD = 64  # rows of a shard
SEEN = 16  # numbers of a weight that tell it from another, about


def key(target: Any, rows: Any) -> str:
    """A name for the states of these rows, which another target or precision does not have.

    Of every weight a few numbers are looked at: what was trained on differs there too.
    """
    digest = hashlib.sha256(rows.fingerprint().encode())
    digest.update(f"{target.dtype} {target.config.to_json_string()}".encode())
    for name, weight in [*target.named_parameters(), *target.named_buffers()]:
        some = weight.detach().flatten()[:: max(1, weight.numel() // SEEN)]
        digest.update(name.encode() + some.double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def capture(target: Any, rows: Any, folder: Path, watch: Watch) -> None:
    """Writes the states of all rows in the target's precision; says before how much that is.

    Raises `ValueError` if they do not fit on the disk, and `OSError`; what was written stays.
    """
    length, width = rows.ids.shape[1], target.get_output_embeddings().weight.shape[1]
    need = len(rows) * length * width * target.dtype.itemsize
    folder.mkdir(parents=True, exist_ok=True)
    there = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free = shutil.disk_usage(folder).free
    watch.line(f"hidden states: {need / 1e9:.2f} GB in {folder}, {free / 1e9:.1f} GB are free")
    if need - there > free:
        raise ValueError(
            f"the hidden states take {need / 1e9:.2f} GB and {free / 1e9:.2f} are free in "
            f"{folder}: drop --capture, or use another folder"
        )
    watch.phase("capturing hidden states")
    for first in range(0, len(rows), SHARD):
        file = _shard(folder, first)
        if not file.exists():
            states = torch.cat([_states(target, rows[i]) for i in _group(rows, first)])
            with replacing(file) as fresh:
                save_file({"states": states}, fresh)
        watch.share(min(1.0, (first + SHARD) / len(rows)))


class Captured(Dataset[Batch]):
    """Rows with their states (L, d), read as they are asked for."""

    def __init__(self, rows: Any, folder: Path) -> None:
        self.rows, self.folder = rows, folder
        self.ids = rows.ids

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        with safe_open(_shard(self.folder, index - index % SHARD), "pt") as shard:
            states: Tensor = shard.get_slice("states")[index % SHARD]
        row: Batch = dict(self.rows[index])
        return row | {"states": states}


def _group(rows: Any, first: int) -> range:
    return range(first, min(first + SHARD, len(rows)))


@torch.no_grad()
def _states(target: Any, row: Batch) -> Tensor:
    batch = {name: tensor[None] for name, tensor in row.items()}
    return states_of(target, on(batch, target.device)).cpu().contiguous()


def _shard(folder: Path, first: int) -> Path:
    return folder / f"{first:08d}.safetensors"
