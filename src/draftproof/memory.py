"""Bytes of keys and values: who may run, where all that run have so much together.

A request gets a place when the longest row that it may need is free. So nothing that was let in is
ever taken back, and none waits for memory in the middle. Does not know what is in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import torch

from draftproof.request import Request
from draftproof.runners.base import EncoderInput
from draftproof.runners.kv import available_bytes
from draftproof.runners.rows import FIRST_SLOTS, Rows, whole
from draftproof.writing import NODES, OPEN

AUTO = "auto"
MARGIN = 0.1  # of what is free, for passes and whatever else runs
LEAST = FIRST_SLOTS * 4  # bytes of the shortest text: keys and values of one number of 2 bytes each
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class Store(Protocol):
    """A runner, with the rows that it has now."""

    @property
    def held(self) -> Rows: ...


class Memory:
    """At most `total` bytes; None: what there is.

    given: see `bytes_of`; None is no bound. stores: the target first, then what drafts; set when
    they are loaded.

    A text without `max_tokens` gets room for `OPEN` tokens, and for as many more whenever it comes
    to their end, as long as there are bytes; else it ends there, with a warning.
    """

    stores: Sequence[Store] = ()

    def __init__(self, given: int | str | None) -> None:
        self.total, self._auto = None if given is None else bytes_of(given), given == AUTO
        self._claims: dict[int, int] = {}  # key -> slots
        self._inputs: dict[EncoderInput, set[int]] = {}  # what an encoder reads -> keys that claim
        self._lengths: dict[int, int] = {}  # key of a text that may get more -> its longest

    def settle(self, device: torch.device) -> None:
        """All weights are loaded: "auto" is most of what is free now.

        Raises `ValueError` where no text at all would fit.
        """
        if self._auto:
            self.total = free(device)
        if self.total is not None and self.total < (least := FIRST_SLOTS * self.slot_bytes):
            raise ValueError(
                f"kv_memory is {self.total:,} bytes, and keys and values of the shortest text take "
                f"{least:,}: give more"
            )

    def __str__(self) -> str:
        if self.total is None:
            return "keys and values take what there is"
        of_model, of_all = self.stores[0].held.slot_bytes, self.slot_bytes
        drafts = f", {of_all - of_model:,} of them a draft's" if of_all > of_model else ""
        tokens = self.total // max(of_all, 1)
        each = f"{tokens:,} tokens of {of_all:,} bytes each{drafts}" if of_all else "any length"
        return f"{self.total / 1e9:.2f} GB for keys and values: {each}"

    @property
    def slot_bytes(self) -> int:
        """Of one token, in all models."""
        return sum(store.held.slot_bytes for store in self.stores)

    @property
    def taken(self) -> int:
        """Bytes that requests that run have or may need; any thread may ask."""
        claims = list(self._claims.items())
        return sum(map(self._beside, list(self._inputs))) + sum(
            held.slot_bytes * max(slots, held.slots_of(key))
            for held in self._rows()
            for key, slots in claims
        )

    def check(self, request: Request) -> None:
        """Raises `ValueError` for a request that never fits."""
        if self.total is None:
            return
        slots, beside = self._slots(request), self._beside(request.encoder_input)
        if slots * self.slot_bytes + beside > self.total:
            left = max(0, self.total - beside)
            read = f", {beside:,} of them for what the encoder reads" if beside else ""
            tokens = left // self.slot_bytes // FIRST_SLOTS * FIRST_SLOTS - NODES
            more = self._longest(request) - len(request.prompt)
            raise ValueError(
                f"keys and values of {len(request.prompt)} prompt tokens and {more} more take "
                f"{slots * self.slot_bytes + beside:,} bytes{read}, and kv_memory is "
                f"{self.total:,}: at most {max(0, tokens)} tokens fit"
            )

    def check_batch(self, texts: int, device: torch.device) -> None:
        """Raises `ValueError` for more texts at once than there is memory for the shortest of."""
        known = available_bytes(device) if self.total is None else self.total
        each = FIRST_SLOTS * self.slot_bytes
        if known is not None and texts * each > known:
            raise ValueError(
                f"{texts:,} texts at once take {texts * each / 1e9:,.1f} GB for keys and values, "
                f"and {known / 1e9:,.1f} are free: give {max(1, known // each):,} at most"
            )

    def admit(self, request: Request) -> bool:
        """Whether there is room for all that the request may write, which is then kept for it.

        Raises `ValueError`, as `check`, where nobody will make room: what drafts, and takes memory
        too, may be another since the request was checked.
        """
        if self.total is None:
            return True
        slots = self._slots(request)
        self._hold(request)
        if not self._claim(request.key, slots, self.total):
            self._drop(request)
            if not self._claims:
                self.check(request)
            return False
        if request.params.max_tokens is None and slots - NODES < request.max_length:
            self._lengths[request.key], request.extends = request.max_length, True
            request.max_length = slots - NODES
        return True

    def extend(self, request: Request) -> None:
        """More room for a text that comes to the end of what it has, if it may get any."""
        longest = self._lengths.get(request.key)
        near = request.max_length - len(request.tokens) <= NODES
        if self.total is None or longest is None or not near:
            return
        slots = whole(min(request.max_length + OPEN, longest) + NODES)
        warning = f"no memory for keys and values of more than {request.max_length} tokens"
        if not self._claim(request.key, slots, self.total):
            if not request.starved:
                request.starved = True
                request.warnings.append(warning)
            return
        if request.starved:
            request.starved = False
            request.warnings.remove(warning)
        request.max_length = min(slots - NODES, longest)
        if request.max_length == longest:
            del self._lengths[request.key]
            request.extends = False

    def inherit(self, request: Request, heir: Request) -> None:
        """`heir` has the row of `request`, of the same prompt, and may need as much."""
        if self.total is None:
            return
        self._hold(heir)
        self._drop(request)
        slots = self._claims.pop(request.key, self._slots(heir))
        self._lengths.pop(request.key, None)
        self._limit(heir.key, slots)
        if heir.params.max_tokens is None and slots - NODES < heir.max_length:
            self._lengths[heir.key], heir.extends = heir.max_length, True
            heir.max_length = slots - NODES

    def release(self, request: Request) -> None:
        self._drop(request)
        self._claims.pop(request.key, None)
        self._lengths.pop(request.key, None)
        for held in self._rows():
            held.limits.pop(request.key, None)

    def _rows(self) -> list[Rows]:
        return [store.held for store in self.stores]

    def _hold(self, request: Request) -> None:
        if request.encoder_input is not None:
            self._inputs.setdefault(request.encoder_input, set()).add(request.key)

    def _drop(self, request: Request) -> None:
        """What was read for it is counted as long as another completion of its prompt has it."""
        given = request.encoder_input
        if given is not None and given in self._inputs:
            self._inputs[given].discard(request.key)
            if not self._inputs[given]:
                del self._inputs[given]

    def _beside(self, given: EncoderInput | None) -> int:
        """Bytes that all models keep of what an encoder reads."""
        return 0 if given is None else given.size * sum(r.input_bytes for r in self._rows())

    def _longest(self, request: Request) -> int:
        """Tokens that it may have in the end; a text that goes on has some already."""
        most = request.params.max_tokens
        end = len(request.tokens) + OPEN if most is None else len(request.prompt) + most
        return min(end, request.max_length)

    def _slots(self, request: Request) -> int:
        return whole(self._longest(request) + NODES)

    def _claim(self, key: int, slots: int, total: int) -> bool:
        """Rows that nobody has make way, the oldest first."""
        before = self._claims.pop(key, None)
        taken = self.taken
        # While a row grows it lies there twice.
        taken += sum(held.slot_bytes * held.slots_of(key) for held in self._rows())
        left = total - taken - slots * self.slot_bytes
        for held in self._rows() if left >= 0 else ():
            while sum(rows.idle_bytes() for rows in self._rows()) > left and held.shed():
                pass
        if left < 0:
            if before is not None:
                self._claims[key] = before
            return False
        self._limit(key, slots)
        return True

    def _limit(self, key: int, slots: int) -> None:
        self._claims[key] = slots
        for held in self._rows():
            held.limits[key] = slots


def bytes_of(given: int | str) -> int:
    """A number of bytes, also as "8GB" or "8GiB"; 0 for "auto".

    Raises `ValueError` for what is none.
    """
    if given == AUTO:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", str(given).strip().lower())
    number = float(found[1]) * UNITS.get(found[2], 0) if found else 0
    if number < 1:
        raise ValueError(f'kv_memory is {given!r}: give bytes, "8GB", "8GiB" or "auto"')
    return int(number)


def free(device: torch.device) -> int:
    """Bytes on `device` that keys and values may have, now that all weights are there."""
    known = available_bytes(device)
    if known is None:
        raise ValueError("the system does not tell how much memory is free: give kv_memory a size")
    return int(known * (1 - MARGIN))
