"""Keys and values of committed tokens and of one tree per row: where they live and move.

A row belongs to one key; slot i holds position i for committed tokens, scratch nodes lie behind
them. `rows.Rows` says which row is whose, `KVCache` holds one pair of tensors per row and layer,
(heads, slots, head size). Contiguous, not paged: a row can be handed to any attention kernel as a
view. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from draftproof.runners.rows import Rows, whole

GROUP = Path("/sys/fs/cgroup")
SMALL = 64 << 20  # bytes for which nobody asks whether they are free

Pair = tuple[Tensor, Tensor]  # keys and values of one layer


def available_bytes(device: torch.device) -> int | None:
    """Memory that could still be taken on `device`; None where nobody says.

    In a container what its own limit leaves, if that is less: /proc/meminfo tells of the host.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    free, left = int(line.split()[1]) * 1024, _left_to_group()
    return free if left is None else min(free, left)


def _left_to_group() -> int | None:
    """Of the limit of the control group (version 2) that is the root here, as in a container.

    Pages of files that nobody used of late make way. None: there is no limit.
    """
    try:
        limit, taken = (int((GROUP / f"memory.{n}").read_text()) for n in ("max", "current"))
        lines = (GROUP / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # "max"
        return None
    idle = next((int(x.split()[1]) for x in lines if x.startswith("inactive_file ")), 0)
    return max(0, limit - taken + idle)


@dataclass(frozen=True, slots=True)
class Row:
    """What one row has room for: (heads, slots, head size) twice in every layer."""

    slots: int = 0
    layers: dict[int, Pair] = field(default_factory=dict)


class KVCache(Rows):
    """Keys and values for at most `max_rows` keys, each row as long as its text needs.

    layers: an empty pair of each layer, which tells heads, sizes, type and place; a layer that is
    not among them is known from its first pass on. All of a row's room is there before a pass
    begins, or nothing is changed and `MemoryError` is raised.
    """

    def __init__(
        self, max_rows: int, max_slots: int, layers: Mapping[int, Pair] | None = None
    ) -> None:
        super().__init__(max_rows)
        self.max_slots = max_slots
        self.layers: dict[int, Pair] = dict(layers or {})
        self._held: dict[int, Row] = {}

    def reserve(self, key: int, slots: int) -> int:
        """The row of `key`, made if new, with room for `slots` in all; what it holds stays."""
        row = self.row_of(key)
        held = self._held.get(row, Row())
        if slots > held.slots or len(held.layers) < len(self.layers):
            wanted = max(slots, min(whole(slots), self.max_slots))
            wanted = self.size(key, held.slots, wanted, self.max_slots)
            layers = {layer: held.layers.get(layer, empty) for layer, empty in self.layers.items()}
            self._held[row] = Row(wanted, self._room(layers, wanted))
        return row

    def write(self, layer: int, row: int, at: int, key: Tensor, value: Tensor) -> None:
        """Store key and value (heads, T, head size) of one layer in the slots from `at`."""
        held = self._held[row]
        if layer not in held.layers:
            empty = key.new_empty(key[:, :0].shape), value.new_empty(value[:, :0].shape)
            held.layers.update(self._room({layer: empty}, held.slots))
            self.layers[layer] = empty
        keys, values = held.layers[layer]
        if keys.dtype != key.dtype or keys.device != key.device:  # the owner converted the model
            keys, values = held.layers[layer] = keys.to(key), values.to(value)
            self.layers[layer] = keys[:, :0].clone(), values[:, :0].clone()
        end = at + key.shape[1]
        keys[:, at:end] = key
        values[:, at:end] = value

    def pair(self, layer: int, row: int) -> Pair | None:
        """All slots of a row (heads, slots, head size), if it has had keys of this layer before."""
        return self._held[row].layers.get(layer)

    def read(self, layer: int, row: int, end: int) -> Pair:
        """Views (1, heads, end, head size) of everything before slot `end`."""
        keys, values = self._held[row].layers[layer]
        return keys[None, :, :end], values[None, :, :end]

    def move(self, row: int, sources: Sequence[int], to: int) -> None:
        """Copy the slots `sources` to the slots from `to`, in every layer."""
        at = None
        for pair in self._held[row].layers.values():
            for tensor in pair:
                if at is None or at.device != tensor.device:
                    at = torch.tensor(sources, device=tensor.device)
                with torch.inference_mode():
                    tensor[:, to : to + len(sources)] = tensor.index_select(1, at)

    def copy(self, row: int, key: int, slots: int) -> None:
        """Give a new `key` a row of its own, whose first `slots` are those of `row`.

        Raises `MemoryError`, also where `row` was parked and had to make way.
        """
        made = self._held[self.reserve(key, slots)]
        if not self.holds(row):
            raise MemoryError
        for layer, pair in self._held[row].layers.items():
            for old, new in zip(pair, made.layers[layer], strict=True):
                with torch.inference_mode():
                    new[:, :slots] = old[:, :slots]

    @property
    def slot_bytes(self) -> int:
        parts = [part for pair in self.layers.values() for part in pair]
        return sum(part.element_size() * part.shape[0] * part.shape[2] for part in parts)

    def sizes(self) -> dict[int, int]:
        return {row: held.slots for row, held in list(self._held.items())}

    def drop(self, row: int) -> None:
        self._held.pop(row, None)

    def free_bytes(self) -> int | None:
        devices = [keys.device for keys, _ in self.layers.values()]
        return available_bytes(devices[0]) if devices else None

    def check(self, keys: Collection[int]) -> None:
        super().check(keys)
        texts = {row: self.lengths.get(key, 0) for key, row in self.rows.items()}
        texts |= {row: len(held.tokens) for row, held in self._parked.items()}
        for row, length in texts.items():
            held = self._held.get(row, Row())
            assert length <= min(held.slots, self.max_slots), "a text is longer than its row"
            for pair in held.layers.values():
                assert all(part.shape[1] == held.slots for part in pair), "layers differ in slots"

    def _room(self, layers: Mapping[int, Pair], slots: int) -> dict[int, Pair]:
        """New tensors of `slots`, beginning with what these hold; idle rows make way for them."""
        while True:
            try:
                return _longer(layers, slots)
            except MemoryError:
                if not self.shed():
                    raise


def _longer(layers: Mapping[int, Pair], slots: int) -> dict[int, Pair]:
    parts = [part for pair in layers.values() for part in pair]
    size = sum(part.element_size() * slots * part.shape[0] * part.shape[2] for part in parts)
    on_cpu = [part.device for part in parts if part.device.type == "cpu"]
    # The system promises more than it has; an accelerator says no by itself.
    free = available_bytes(on_cpu[0]) if on_cpu and size > SMALL else None
    try:
        if free is not None and size > free:
            raise MemoryError
        with torch.inference_mode():
            return {
                layer: (_copied(keys, slots), _copied(values, slots))
                for layer, (keys, values) in layers.items()
            }
    except (MemoryError, RuntimeError) as error:  # torch raises the latter
        known = "" if free is None else f" and {free:,} are free"
        raise MemoryError(
            f"keys and values of a request with room for {slots:,} tokens take {size:,} "
            f"bytes{known}: lower max_batch or max_length"
        ) from error


def _copied(old: Tensor, slots: int) -> Tensor:
    fresh = old.new_zeros(old.shape[0], slots, old.shape[2])
    fresh[:, : old.shape[1]] = old
    return fresh
