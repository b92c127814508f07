"""Keys and values of the native runner: which row of the kernels is whose, and how long it is.

Knows no pass and no model.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from draftproof import native
from draftproof.runners.kv import available_bytes
from draftproof.runners.packing import Packed
from draftproof.runners.rows import FIRST_SLOTS, Rows


class NativeRows(Rows):
    """Keys and values of at most `max_rows` keys, each row as long as it had to be."""

    def __init__(self, packed: Packed, max_rows: int, max_slots: int) -> None:
        super().__init__(max_rows)
        self.packed, self.max_slots = packed, max_slots
        self._handles: dict[int, int] = {}  # row -> what the library calls it
        self._slots: dict[int, int] = {}
        self._frees: dict[int, weakref.finalize[Any, Any]] = {}

    def reserve(self, key: int, slots: int) -> int:
        """The handle of the key's row, made if new, with room for `slots` in all.

        Raises `MemoryError`; a key that had no row has none then.
        """
        new = key not in self.rows
        try:
            row = self.row_of(key)
            if slots > self._slots.get(row, -1):  # a new one is made even for none
                have = self._slots.get(row, 0)
                self._grow(row, slots, self.size(key, have, slots, self.max_slots))
            return self._handles[row]
        except BaseException:
            if new:
                self.release(key)
            raise

    def _grow(self, row: int, slots: int, more: int) -> None:
        """Room for `more` than `slots`, or for just as many where so much is not free."""
        if row not in self._handles:
            handle = self.packed.library.dp_row_new(self.packed.handle)
            if not handle:
                raise MemoryError("no memory for another request: lower max_batch")
            self._frees[row] = native.owned(self, self.packed.library.dp_row_free, handle)
            self._handles[row] = handle
        have = next((count for count in (more, slots) if self._reserved(row, count)), None)
        while have is None and self.shed():
            have = slots if self._reserved(row, slots) else None
        if have is None:
            raise MemoryError(
                f"keys and values of a request with {slots} tokens take {self.bytes(slots):,} "
                f"bytes, which are not free: lower max_batch or max_length"
            )
        self._slots[row] = have

    def _reserved(self, row: int, slots: int) -> bool:
        room = self.free_bytes()
        if room is not None and self.bytes(slots) > room:
            return False
        code: int = self.packed.library.dp_row_reserve(self._handles[row], slots)
        return code == native.OK

    def free_bytes(self) -> int | None:
        return available_bytes(torch.device("cpu"))

    @property
    def slot_bytes(self) -> int:
        return self.bytes(FIRST_SLOTS) // FIRST_SLOTS

    def sizes(self) -> dict[int, int]:
        return dict(self._slots)

    def drop(self, row: int) -> None:
        if row in self._slots:
            del self._handles[row], self._slots[row]
            self._frees.pop(row)()

    def bytes(self, slots: int) -> int:
        """What a row of so many slots takes."""
        return int(self.packed.library.dp_row_bytes(self.packed.handle, slots))

    def move(self, row: int, sources: Sequence[int], to: int) -> None:
        """Copy the slots `sources` to the slots from `to`, in every layer."""
        ids = (ctypes.c_int32 * len(sources))(*sources)
        code = self.packed.library.dp_row_move(self._handles[row], ids, len(sources), to)
        assert code == native.OK, "slots were moved that a row does not have"

    def copy(self, row: int, key: int, slots: int) -> None:
        """Copy the first slots of a row to that of another key, made if new.

        Raises `MemoryError`, also where `row` was parked and had to make way; a key that had no row
        has none then. The lengths stay as they are.
        """
        to = self.reserve(key, slots)
        if not self.holds(row):
            self.release(key)
            raise MemoryError
        code = self.packed.library.dp_row_copy(to, self._handles[row], slots)
        assert code == native.OK, "slots were copied that a row does not have"
