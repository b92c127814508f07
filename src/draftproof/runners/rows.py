"""Which row of a cache is whose, and what rows hold for nobody, to begin with later.

A row belongs to one key. What lies in its slots is the storage's: see `kv` and `native_rows`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass

import torch

FIRST_SLOTS = 256
SPARE = 1 / 8  # of what is free may rows keep that hold nothing


def whole(slots: int) -> int:
    """Slots to take where so many are needed: a few tokens more need nothing new then."""
    return -(-slots // FIRST_SLOTS) * FIRST_SLOTS


def grown(have: int, wanted: int, most: int) -> int:
    """Slots to have when `wanted` are needed: at least twice as many, as far as `most` allows."""
    if wanted <= have:
        return have
    return max(wanted, min(max(FIRST_SLOTS, 2 * have), most))


def shared_length(held: array[int], tokens: array[int]) -> int:
    """How many tokens two texts share at their beginning."""
    both = min(len(held), len(tokens))
    if not both:
        return 0
    views = [torch.frombuffer(ids, dtype=torch.int64, count=both) for ids in (held, tokens)]
    differ = views[0] != views[1]
    return int(differ.byte().argmax()) if differ.any() else both  # the first of the largest


@dataclass(frozen=True, slots=True)
class Parked:
    """What a row holds for nobody: committed tokens, and the salt of whose they were."""

    tokens: array[int]
    salt: str = ""


class Rows:
    """At most `max_rows` rows, each of one key or parked with what it holds for a later one.

    An interrupt may come between any two statements: a row that nobody is said to have is free, a
    length that nobody set is 0, so what was on its way is read again and never trusted.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows: dict[int, int] = {}  # key -> row
        self.lengths: dict[int, int] = {}  # key -> committed tokens
        self.limits: dict[int, int] = {}  # key -> slots that its row is made with, once for all
        self.input_bytes = 0  # of an encoder's input: what is kept of each of its tokens, for all
        self.expected: dict[int, int] = {}  # key -> slots that it will likely need
        self._parked: dict[int, Parked] = {}  # row -> what it holds for nobody, oldest first

    def row_of(self, key: int) -> int:
        """The row of `key`, made if new."""
        if key not in self.rows:
            self.lengths[key] = 0
            self.rows[key] = self._empty_row(self.expected.get(key, 0))
        return self.rows[key]

    def _free(self) -> list[int]:
        """Free rows that have room, and the first of those that have none, which are all alike."""
        taken, sizes, bare = {*self.rows.values(), *self._parked}, self.sizes(), 0
        while bare in taken or sizes.get(bare):
            bare += 1
        free = [row for row in sizes if row not in taken and sizes[row]]
        return sorted(free + [bare] * (bare < self.max_rows))

    def _empty_row(self, slots: int) -> int:
        """A free row, the smallest with so much room; where none has, the smallest of all.

        What it has is let go where that is too short: it would be copied, and nothing is in it.
        """
        have = self.sizes()
        sizes = {row: have.get(row, 0) for row in self._free()}
        row = min(sizes, key=lambda row: (sizes[row] < slots, sizes[row]), default=None)
        if row is not None and sizes[row] < slots:
            self.drop(row)
        if row is None:
            row = self._forget_oldest()
        if row is None:
            raise RuntimeError(f"all {self.max_rows} rows of the cache are taken")
        return row

    def _forget_oldest(self) -> int | None:
        """The row that was parked first, now free; None where none is parked."""
        row = next(iter(self._parked), None)
        if row is not None:
            del self._parked[row]
            self.vacated(row)
        return row

    def release(self, key: int, tokens: array[int] | None = None, salt: str = "") -> None:
        """Forget `key`; `tokens`, the committed ones, let a later key of `salt` `adopt` its row."""
        self.expected.pop(key, None)
        length, row = self.lengths.pop(key, 0), self.rows.pop(key, None)
        if row is None:
            return
        if tokens and length:
            self._parked[row] = Parked(tokens[:length], salt)
        else:
            self.vacated(row)

    def likest(self, tokens: array[int], salt: str = "") -> tuple[int, int]:
        """The parked row of this salt that begins most like `tokens`, and how many they share."""
        own = {row: held.tokens for row, held in self._parked.items() if held.salt == salt}
        shared = {row: shared_length(held, tokens) for row, held in own.items()}
        return max(shared.items(), key=lambda each: each[1], default=(-1, 0))

    def spares(self, row: int, shared: int) -> bool:
        """Whether a parked row had better be copied, because it would lose most of what it holds.

        Else two conversations with the same first words would take one row from each other. Where
        it is the one that another key would get anyway, it may as well be taken.
        """
        oldest = next(iter(self._parked))
        another = row != oldest or bool(self._free())
        return another and 2 * shared < len(self._parked[row].tokens)

    def adopt(self, key: int, row: int, shared: int) -> None:
        """Give a new `key` a parked row, of which the first `shared` tokens are its own."""
        assert key not in self.rows
        self.lengths.pop(key, None)
        del self._parked[row]
        self.rows[key] = row
        self.lengths[key] = shared

    def use(self, row: int) -> None:
        """A parked row was of use: the others are forgotten before it."""
        if row in self._parked:
            self._parked[row] = self._parked.pop(row)

    def holds(self, row: int) -> bool:
        """Whether a row is still parked, or some key's."""
        return row in self._parked or row in self.rows.values()

    def hand_over(self, key: int, heir: int, length: int) -> None:
        """The row of `key` becomes that of `heir`, who is new, up to `length` tokens."""
        assert heir not in self.rows and 0 <= length <= self.lengths[key]
        self.expected.pop(key, None)
        del self.lengths[key]
        self.lengths.pop(heir, None)
        row = self.rows.pop(key)
        self.rows[heir] = row
        self.lengths[heir] = length

    def vacated(self, row: int) -> None:
        """A row is nobody's any more; its room stays for the next text, unless that is too much.

        Memory that is new to a process is dear: to take it for a thousand tokens may keep everybody
        waiting as long as several passes.
        """
        sizes = self.sizes()
        if sizes.get(row, 0) > FIRST_SLOTS:
            spare, room = sum(sizes.get(row, 0) for row in self._free()), self.free_bytes()
            if room is None or spare * self.slot_bytes > SPARE * room:
                self.drop(row)

    def free_bytes(self) -> int | None:
        """Memory that could still be taken for rows; None where nobody says."""
        return None

    @property
    def slot_bytes(self) -> int:
        """What the keys and values of one token take."""
        return 0

    def sizes(self) -> dict[int, int]:
        """Slots that each row has room for, whoever has it."""
        return {}

    def drop(self, row: int) -> None:
        """Let go of what was taken for a row that nobody has."""

    def slots_of(self, key: int) -> int:
        """Slots that the row of a key has room for."""
        return self.sizes().get(self.rows.get(key, -1), 0)

    def idle_bytes(self) -> int:
        """What rows take that are no key's."""
        taken = {*self.rows.values()}
        return self.slot_bytes * sum(n for row, n in self.sizes().items() if row not in taken)

    def shed(self) -> bool:
        """Let go of a row that holds nothing, or of the one that was parked first.

        Whether there was any.
        """
        sizes = self.sizes()
        row = next((row for row in self._free() if sizes.get(row)), None)
        if row is None:
            row = self._forget_oldest()
        if row is None:
            return False
        self.drop(row)
        return True

    def size(self, key: int, have: int, wanted: int, most: int) -> int:
        """Slots that the row of `key` is to have when `wanted` are needed: its limit, if any.

        A tree may need more than the limit, as its nodes lie side by side. Without one, what will
        likely be needed is there at once: growing copies what was read, and everybody waits for it.
        """
        limit = self.limits.get(key)
        if limit is not None:
            return max(wanted, min(limit, most))
        return grown(have, max(wanted, min(self.expected.get(key, 0), most)), most)

    def check(self, keys: Collection[int]) -> None:
        """Every row is one key's, or parked, or free; no key is known but `keys`."""
        assert self.rows.keys() <= set(keys), "a row is held for a key that has ended"
        assert self.lengths.keys() <= set(keys), "a length is held for a key that has ended"
        assert self.expected.keys() <= set(keys), "slots are expected of a key that has ended"
        taken = [*self.rows.values(), *self._parked]
        assert len(taken) == len(set(taken)), "a row is held twice"
        assert set(taken) <= set(range(self.max_rows)), "a row is held that there is not"
        assert all(held.tokens for held in self._parked.values()), "an empty row is parked"
