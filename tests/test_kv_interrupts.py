"""Rows under interrupts: nothing is trusted that was not written."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftproof.runners import committed, rows
from draftproof.runners.base import Output, Work
from draftproof.runners.committed import Committed
from draftproof.runners.rows import Rows
from draftproof.tree import TokenTree
from interrupting import places

TEXT = list(range(1000, 1060))


class Ledger(Rows):
    """Slots that hold the tokens themselves."""

    def __init__(self) -> None:
        super().__init__(4)
        self.slots = {row: [0] * 128 for row in range(4)}

    def vacated(self, row: int) -> None:
        self.slots[row] = [0] * 128

    def move(self, row: int, sources: Sequence[int], to: int) -> None:
        for at, token in enumerate([self.slots[row][slot] for slot in sources]):
            self.slots[row][to + at] = token

    def copy(self, row: int, key: int, slots: int) -> None:
        own = self.row_of(key)
        for slot in range(slots):
            self.slots[own][slot] = self.slots[row][slot]


class Books(Committed):
    """A runner whose model is the memory of what it was given."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        super().__init__(self.ledger, self.ledger, prefix_cache=True)

    def forward(self, work: Sequence[Work]) -> list[Output]:
        rows = [self.ledger.row_of(item.key) for item in work]
        for item in work:
            self.passing(item)
        for item, row in zip(work, rows, strict=True):
            at = self.cached(item.key)
            tree = [] if item.tree is None else item.tree.tokens[item.first :]
            for place, token in enumerate(item.new):
                self.ledger.slots[row][at + place] = token
            for place, token in enumerate(tree):
                self.ledger.slots[row][at + len(item.new) + item.first + place] = token
        for item in work:
            self.passed(item)
        return []

    def audit(self) -> None:
        """What is said to be cached is the text, and what is said to be scratch is the tree."""
        for key in range(9):
            length = self.cached(key)
            slots = self.ledger.slots[self.ledger.rows[key]] if length else []
            assert slots[:length] == TEXT[:length]
            scratch = self._scratch.get(key)
            if scratch is not None and scratch.tree is not None:
                slots = self.ledger.slots[self.ledger.rows[key]]
                held = slots[length : length + scratch.ran]
                assert held == list(scratch.tree.tokens[: scratch.ran])
            if key in self._tokens:
                assert list(self._tokens[key][:length]) == TEXT[:length]
        for row, held in self.ledger._parked.items():
            assert list(held.tokens) == self.ledger.slots[row][: len(held.tokens)]

    def go_on(self, key: int) -> None:
        """One step of that request: the rest of its text, a tree in two passes, a path of it."""
        at = self.cached(key)
        length = max(at + 1, min(at + 9, 30))
        following = TEXT[length : length + 2]
        tree = TokenTree([TEXT[length - 1], 7, following[0], 8, following[1]], [-1, 0, 0, 2, 2])
        begun = TokenTree(tree.tokens[:2], tree.parents[:2])
        self.forward([Work(key, TEXT[at : length - 1], begun)])
        self.forward([Work(key, [], tree, 2)])
        self.keep(key, [0, 2, 4])


def life(books: Books) -> None:
    for key in range(2):
        books.begin(key, TEXT)
        books.go_on(key)
    books.fork(2, 0, 7)
    books.go_on(2)
    for cached in (5, 3):  # trees that nothing is kept of
        for root in (7, 8):
            new = TEXT[books.cached(0) : cached + 6]
            books.forward([Work(0, new, TokenTree([root, 9, 9], [-1, 0, 0]))])
        books.crop(0, cached)
    books.go_on(0)
    books.forward([Work(0, TEXT[books.cached(0) : 20], None), Work(2, [], None)])
    books.hand_over(0, 3, 6)
    books.go_on(3)
    books.free(1)
    books.begin(4, TEXT)
    books.go_on(4)
    for key in (2, 3, 4):
        books.free(key)


FILES = (rows.__file__, committed.__file__)


def check_interrupts(step: int) -> None:
    made = Books()
    total = places(FILES, lambda: life(made))
    assert total > 300
    for number in range(1, total, step):
        books = Books()
        with pytest.raises(KeyboardInterrupt):
            places(FILES, lambda books=books: life(books), number)  # type: ignore[misc]
        books.audit()
        for key in range(5):  # whoever caught it may go on
            if books.cached(key):
                books.go_on(key)
                books.audit()
        for key in range(5):
            books.free(key)
        books.check([])
        for key in (5, 6):  # and whoever comes reads on from what is there
            books.begin(key, TEXT)
            books.audit()
            books.go_on(key)
            books.audit()


def test_an_interrupt_leaves_nothing_that_was_not_written() -> None:
    check_interrupts(3)


@pytest.mark.slow
def test_an_interrupt_at_every_instruction() -> None:
    check_interrupts(1)
