"""Keys and values of committed tokens and of one tree per row: where they live and move.

One pair of tensors per layer, (rows, heads, slots, head size). A row belongs to one key; slot i
holds position i for committed tokens, scratch nodes lie behind them. Contiguous, not paged:
a row can be handed to any attention kernel as a view. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_SLOTS = 256


def available_bytes(device: torch.device) -> int | None:
    """Memory that could still be taken on `device`; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


class KVCache:
    """Keys and values for at most `max_rows` keys; grows when needed, never shrinks."""

    def __init__(self, max_rows: int, max_slots: int) -> None:
        self.max_rows, self.max_slots = max_rows, max_slots
        self.rows: dict[int, int] = {}  # key -> row
        self.lengths: dict[int, int] = {}  # key -> committed tokens
        self._free: list[int] = []
        self._row_count = self._slot_count = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, key: int, slots: int) -> int:
        """The row of `key`, made if new, with room for `slots` in all."""
        if key not in self.rows:
            if not self._free and self._row_count >= self.max_rows:
                raise RuntimeError(f"all {self.max_rows} rows of the cache are taken")
            self.rows[key] = self._free.pop() if self._free else self._row_count
            self.lengths[key] = 0
            self._row_count = max(self._row_count, self.rows[key] + 1)
        if slots > self._slot_count:
            doubled = min(max(FIRST_SLOTS, 2 * self._slot_count), self.max_slots)
            self._slot_count = max(slots, doubled)
        return self.rows[key]

    def release(self, key: int) -> None:
        if key in self.rows:
            self._free.append(self.rows.pop(key))
            del self.lengths[key]

    def write(self, layer: int, row: int, at: int, key: Tensor, value: Tensor) -> None:
        """Store key and value (heads, T, head size) of one layer in the slots from `at`."""
        keys, values = self._tensors(layer, key, value)
        end = at + key.shape[1]
        keys[row, :, at:end] = key
        values[row, :, at:end] = value

    def read(self, layer: int, row: int, end: int) -> tuple[Tensor, Tensor]:
        """Views (1, heads, end, head size) of everything before slot `end`."""
        keys, values = self._layers[layer]
        return keys[row : row + 1, :, :end], values[row : row + 1, :, :end]

    def move(self, row: int, sources: Sequence[int], to: int) -> None:
        """Copy the slots `sources` to the slots from `to`, in every layer."""
        at = None
        for tensors in self._layers.values():
            for tensor in tensors:
                if at is None or at.device != tensor.device:
                    at = torch.tensor(sources, device=tensor.device)
                tensor[row, :, to : to + len(sources)] = tensor[row].index_select(1, at)

    def _tensors(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        old = self._layers.get(layer)
        if old is None or old[0].shape[0] < self._row_count or old[0].shape[2] < self._slot_count:
            self._layers[layer] = (
                self._grown(old[0] if old else None, key),
                self._grown(old[1] if old else None, value),
            )
        return self._layers[layer]

    def _grown(self, old: Tensor | None, like: Tensor) -> Tensor:
        shape = (self._row_count, like.shape[0], self._slot_count, like.shape[2])
        if old is not None:
            shape = (max(shape[0], old.shape[0]), shape[1], max(shape[2], old.shape[2]), shape[3])
        bytes_wanted = like.element_size() * shape[0] * shape[1] * shape[2] * shape[3]
        room = available_bytes(like.device) if bytes_wanted > 64 << 20 else None
        if room is not None and bytes_wanted > room:
            raise MemoryError(
                f"one layer's keys for {shape[0]} requests x {shape[2]} tokens take "
                f"{bytes_wanted:,} bytes and {room:,} are free: lower max_batch or max_length"
            )
        fresh = like.new_zeros(shape)
        if old is not None:
            fresh[: old.shape[0], :, : old.shape[2]] = old
        return fresh
