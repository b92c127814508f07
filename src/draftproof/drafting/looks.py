"""Glances natively: all texts of a batch in one call, which takes what one text took in Python.

A pass of the model leaves little of Python in the processor's caches, so that looking text by text
took as long as a tenth of a small model's pass. What is learnt is the same (`calibration`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_double, c_int32, c_void_p

from draftproof.drafting.base import Drafter
from draftproof.drafting.handle import Room
from draftproof.drafting.structures import Look, Merged
from draftproof.native import found
from draftproof.writing import Writing


class LookUp(Drafter):
    """A method that looks up what followed the same tokens before."""

    glanced = True
    age = 0  # looks of another one are not to be used any more

    def look(self, request: Writing) -> Look | None:
        """What tells natively which token it would draft first; None: it has to be asked."""
        return None


def looks_natively() -> bool:
    """Whether the native code is there."""
    return found() is not None


def natively() -> CDLL:
    """The native code, which is there."""
    library = found()
    assert library is not None
    return library


class Looks:
    """Those of one text. known: where each finds what is known of it, see `dp_look`.

    numbers: of the sources that they are of. age, failed: of the look-ups when they were made, and
    sources that do not draft for the text.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        known: Sequence[Sequence[int]],
        numbers: Sequence[int],
        age: int,
        failed: int,
    ) -> None:
        self.numbers, self.age, self.failed = numbers, age, failed
        rooms = [Room(look.nodes) for look in looks]
        for look, addresses, room in zip(looks, known, rooms, strict=True):
            look.weights, look.variances, look.reach, look.recent = addresses
            look.guess = look.place = look.found = -1
            look.tokens, look.parents, look.scores = [addressof(each) for each in room.arrays]
        self.found = False  # that any would draft something
        self.own = [look.own for look in looks]
        self._kept = looks, rooms
        self.all = (Look * len(looks))(*looks)
        self.address = addressof(self.all)
        self.merged = Merged(1 + sum([look.nodes - 1 for look in looks]))

    def forget(self) -> None:
        """What was guessed is not learnt from: a whole draft is."""
        for look in self.all:
            look.guess = -1


class Together:
    """Texts of a batch that are looked at in one call.

    worth: what a token of each counts. rows: what the cheapest row must bring. asking: what asking
    for drafts takes. All in tokens.
    """

    def __init__(
        self,
        texts: Sequence[tuple[Writing, Looks]],
        worth: Sequence[float],
        rows: Sequence[float],
        asking: float,
    ) -> None:
        count, self.texts, self.asking = len(texts), texts, asking
        self._worth, self._rows = (c_double * count)(*worth), (c_double * count)(*rows)
        self._surplus, self._guesses = (c_double * count)(), (c_int32 * count)()
        self._counted = [*worth]
        self._addresses = (c_void_p * count)(*[looks.address for _, looks in texts])
        self._looks = (c_int32 * count)(*[len(looks.own) for _, looks in texts])

    def surplus(self, able: Sequence[bool]) -> list[float]:
        """What drafts are expected to bring beyond asking for them, of each text.

        able: whether a text can pay for one; what it writes is learnt from anyway. Raises
        `MemoryError`.
        """
        self._worth[:] = [
            worth if pays else 0.0 for worth, pays in zip(self._counted, able, strict=True)
        ]
        given, sizes, fresh = missing(self.texts)
        done = natively().dp_glance(
            *(self._addresses, len(sizes), self._looks),
            *[each.buffer_info()[0] for each in (given, sizes, fresh)],
            *(self._worth, self._rows, self.asking, self._surplus, self._guesses),
        )
        self.texts[0][1].own[0].grown(done, sizes[0])  # raises, if anything does
        for (_, looks), size, guesses in zip(self.texts, sizes, self._guesses, strict=True):
            looks.found = guesses > 0
            for own in looks.own:
                own.size = size
        return self._surplus[:]


def missing(texts: Sequence[tuple[Writing, Looks]]) -> tuple[array[int], array[int], array[int]]:
    """Tokens that look-ups have not seen, of all texts; lengths of the texts; how many are new."""
    given, sizes, fresh = array("i"), array("i"), array("i")
    for request, looks in texts:
        written, read = request.tokens, request.before
        count, own = len(written), looks.own
        size, seen = len(read) + count, own[0].size
        for each in own:
            seen = min(seen, each.size)
        more = size - seen
        if more > count:
            given.extend(read[seen:])
        if more:
            given.extend(written[max(0, count - more) :])
        sizes.append(size)
        fresh.append(more)
    return given, sizes, fresh
