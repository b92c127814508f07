"""Keys and values of committed tokens and of one tree per row: where they live and move.

A row belongs to one key; slot i holds position i for committed tokens, scratch nodes lie behind
them. `Rows` says which row is whose, `KVCache` holds one pair of tensors per layer, (rows, heads,
slots, head size). Contiguous, not paged: a row can be handed to any attention kernel as a view.
Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix  # of lists as well as of paths

import torch
from torch import Tensor

FIRST_SLOTS = 256


def grown(have: int, wanted: int, most: int) -> int:
    """Slots to have when `wanted` are needed: at least twice as many, as far as `most` allows."""
    if wanted <= have:
        return have
    return max(wanted, min(max(FIRST_SLOTS, 2 * have), most))


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


class Rows:
    """At most `max_rows` rows, each of one key or parked with what it holds for a later one."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows: dict[int, int] = {}  # key -> row
        self.lengths: dict[int, int] = {}  # key -> committed tokens
        self._free: list[int] = []
        self._parked: dict[int, list[int]] = {}  # row -> what it holds for nobody, oldest first
        self._row_count = 0

    def row_of(self, key: int) -> int:
        """The row of `key`, made if new."""
        if key not in self.rows:
            self.rows[key] = self._empty_row()
            self.lengths[key] = 0
        return self.rows[key]

    def _empty_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._row_count < self.max_rows:
            self._row_count += 1
            return self._row_count - 1
        if not self._parked:
            raise RuntimeError(f"all {self.max_rows} rows of the cache are taken")
        row = next(iter(self._parked))
        del self._parked[row]
        return row

    def release(self, key: int, tokens: Sequence[int] = ()) -> None:
        """Forget `key`; `tokens`, the committed ones, let a later key `adopt` its row."""
        if key in self.rows:
            row, length = self.rows.pop(key), self.lengths.pop(key)
            if tokens and length:
                self._parked[row] = list(tokens[:length])
            else:
                self._free.append(row)

    def adopt(self, key: int, tokens: Sequence[int]) -> int:
        """Give `key` the parked row that begins most like `tokens`; how many tokens they share.

        A row that would lose most of what it holds is left alone while there is another to take:
        else two conversations with the same first words would take one row from each other.
        """
        shared = {
            row: len(commonprefix([held, list(tokens)])) for row, held in self._parked.items()
        }
        row = max(shared, key=lambda row: shared[row], default=None)
        if row is None or not shared[row]:
            return 0
        oldest = next(iter(self._parked))  # the one that would be taken
        another = self._free or self._row_count < self.max_rows or row != oldest
        if another and 2 * shared[row] < len(self._parked[row]):
            return 0
        del self._parked[row]
        self.rows[key], self.lengths[key] = row, shared[row]
        return shared[row]


class KVCache(Rows):
    """Keys and values for at most `max_rows` keys; grows when needed, never shrinks."""

    def __init__(self, max_rows: int, max_slots: int) -> None:
        super().__init__(max_rows)
        self.max_slots, self._slot_count = max_slots, 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, key: int, slots: int) -> int:
        """The row of `key`, made if new, with room for `slots` in all."""
        row = self.row_of(key)
        self._slot_count = grown(self._slot_count, slots, self.max_slots)
        return row

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
                with torch.inference_mode():
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
