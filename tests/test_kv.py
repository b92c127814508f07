"""Rows of keys and values: their room, who has them, and what is left when something goes wrong."""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from os.path import commonprefix
from random import Random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from draftproof.runners import base, choice, committed, kv
from draftproof.runners.base import Output, Work
from draftproof.runners.committed import Committed
from draftproof.runners.kv import FIRST_SLOTS, KVCache, Rows, shared_length
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree
from interrupting import places


@cache
def model() -> PreTrainedModel:
    return tiny.model(dtype=torch.float64, max_position_embeddings=4096)


def some(seed: int, count: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, tiny.VOCABULARY) for _ in range(count)]


@torch.inference_mode()
def write(runner: TorchRunner, key: int, prompt: Sequence[int], count: int = 4) -> list[int]:
    """The prompt in slices, then greedily `count` tokens, by trees whose kept path is no chain."""
    tokens = list(prompt)
    while len(tokens) - 1 - runner.cached(key) > 512:
        at = runner.cached(key)
        runner.forward([Work(key, tokens[at : at + 512], None)])
    while len(tokens) < len(prompt) + count:
        tree = TokenTree([tokens[-1], 5, 6], [-1, 0, 0])
        (output,) = runner.forward([Work(key, tokens[runner.cached(key) : -1], tree)])
        first = int(output.logits[0].argmax())
        tree = TokenTree([tokens[-1], 5, first], [-1, 0, 0])
        (output,) = runner.forward([Work(key, [], tree)])
        runner.keep(key, [0, 2])
        tokens += [first, int(output.logits[2].argmax())]
    return tokens[len(prompt) :]


def slots(runner: TorchRunner, key: int) -> int:
    return runner._cache._held[runner._cache.rows[key]].slots


# --- room ---


@pytest.fixture(name="refuse")
def _refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """refuse(n): the n-th tensor that the cache asks for is not there; returns the count so far."""
    real = kv._copied

    def refuse(number: int) -> list[int]:
        asked = [0]

        def copied(old: torch.Tensor, slots: int) -> torch.Tensor:
            asked[0] += 1
            if asked[0] == number:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return real(old, slots)

        monkeypatch.setattr(kv, "_copied", copied)
        return asked

    return refuse


def test_a_refused_tensor_ends_one_request_and_nothing_else(
    refuse: Callable[[int], list[int]],
) -> None:
    prompts = [some(0, 30), some(1, 600), some(2, 5)]  # the second one grows
    short = tiny.model(dtype=torch.float64, num_hidden_layers=2, max_position_embeddings=4096)
    short.config.layer_types = ["full_attention"] * 2
    runner = choice.on_torch(short, max_batch=3)
    alone = [write(choice.on_torch(short), 0, prompt, 2) for prompt in prompts]
    asked, number = refuse(0), 0
    for key, prompt in enumerate(prompts):
        write(runner, key, prompt, 2)
    total = asked[0]
    assert total == 4 * 2 * 2  # keys and values of two layers, twice for one row
    for number in range(1, total + 1):
        runner.close()
        refuse(number)
        failed = []
        for key, prompt in enumerate(prompts):
            try:
                assert write(runner, key, prompt, 2) == alone[key]
            except MemoryError as error:
                assert "tokens take" in str(error) and "max_length" in str(error)
                failed.append(key)
                runner.free(key)
        assert len(failed) == 1
        assert write(runner, 7, prompts[failed[0]], 2) == alone[failed[0]]  # memory is back
        held = {*range(3), 7} - {*failed}
        runner.check(held)
        for key in held:
            runner.free(key)
        runner.check([])


def test_a_request_that_grows_too_long_leaves_what_it_has_read(
    refuse: Callable[[int], list[int]],
) -> None:
    prompt = some(3, 1500)
    runner = choice.on_torch(model(), max_batch=2)
    wanted = write(choice.on_torch(model()), 0, prompt)
    with torch.inference_mode():
        runner.forward([Work(0, prompt[:512], None)])
        for number in range(1, 9):
            refuse(number)
            with pytest.raises(MemoryError):
                runner.forward([Work(0, prompt[512:1024], None)])
            assert runner.cached(0) == 512 and slots(runner, 0) == 512
            runner.check([0])
    refuse(0)
    assert write(runner, 0, prompt) == wanted


def test_a_long_prompt_among_short_ones_fails_alone_and_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the system says is free is believed before anything is taken."""
    runner = choice.on_torch(model(), max_batch=4)
    short, long = some(4, 20), some(5, 3000)
    wanted = write(runner, 0, short)
    room = 600 * 4 * 2 * 2 * 12 * 8  # slots x layers x pair x heads x size x bytes
    monkeypatch.setattr(kv, "SMALL", 0)
    monkeypatch.setattr(kv, "available_bytes", lambda _: room)
    for attempt in range(1, 4):
        with pytest.raises(MemoryError, match=r"1,024 tokens take .* are free"):
            write(runner, 100 + attempt, long)
        runner.free(100 + attempt)
        assert write(runner, attempt, short) == wanted
    runner.check(range(4))


def test_what_is_kept_for_later_makes_way(refuse: Callable[[int], list[int]]) -> None:
    runner = choice.on_torch(model(), max_batch=4, prefix_cache=True)
    for key in range(2):
        runner.begin(key, some(key, 40))
        write(runner, key, some(key, 40))
        runner.free(key)
    assert len(runner._cache._parked) == 2
    refuse(1)
    write(runner, 2, some(6, 40))
    assert list(runner._cache._parked) == [1]  # the one that was used last
    runner.check([2])


def test_a_row_is_as_long_as_its_text_and_lets_go() -> None:
    runner = choice.on_torch(model(), max_batch=17)
    for key in range(16):
        write(runner, key, some(key, 20))
    rows = {key: runner._cache._held[row] for key, row in runner._cache.rows.items()}
    write(runner, 16, some(16, 1200))
    assert slots(runner, 16) == 2048
    for key, held in rows.items():  # nobody else was touched
        assert runner._cache._held[runner._cache.rows[key]] is held
        assert held.slots == FIRST_SLOTS
    long = weakref.ref(runner._cache._held[runner._cache.rows[16]].layers[0][0])
    runner.free(16)
    assert long() is None
    for key in range(16):
        runner.free(key)
    assert {held.slots for held in runner._cache._held.values()} == {FIRST_SLOTS}
    tensors = [weakref.ref(part) for held in rows.values() for part in held.layers[1]]
    del rows, held
    runner.close()
    assert [each() for each in tensors] == [None] * 32


def test_growing_copies_a_text_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, real = [0], kv._copied

    def counting(old: torch.Tensor, slots: int) -> torch.Tensor:
        copied[0] += old.shape[1]
        return real(old, slots)

    monkeypatch.setattr(kv, "_copied", counting)
    held = KVCache(32, 1 << 20)
    key = torch.zeros(1, 1, 1)
    with torch.inference_mode():
        for at in range(3000):
            held.write(0, held.reserve(0, at + 1), at, key, key)
        assert copied[0] <= 2 * 2 * 3000  # keys and values
        copied[0] = 0
        for arrival in range(1, 32):
            held.write(0, held.reserve(arrival, 1), 0, key, key)
    assert copied[0] == 0


def test_layers_may_differ_in_heads_sizes_and_types() -> None:
    held, shapes = KVCache(3, 4096), {0: (2, 4, 4), 1: (1, 6, 3), 5: (4, 2, 2)}
    kinds = {0: torch.float32, 1: torch.float64, 5: torch.bfloat16}
    wanted: dict[tuple[int, int], list[torch.Tensor]] = {}
    with torch.inference_mode():
        for key, count in ((0, 10), (1, 700), (0, 300)):
            row, at = held.reserve(key, count), held.lengths[key]
            for layer, (heads, size, value_size) in shapes.items():
                generator = torch.Generator().manual_seed(layer + count)
                pair = [
                    torch.rand(heads, count, each, generator=generator).to(kinds[layer])
                    for each in (size, value_size)
                ]
                held.write(layer, row, at, pair[0][:, at:], pair[1][:, at:])
                before = wanted.get((key, layer), [part[:, :0] for part in pair])
                wanted[key, layer] = [
                    torch.cat([old, new[:, at:]], 1) for old, new in zip(before, pair, strict=True)
                ]
            held.lengths[key] = count
        held.copy(1, 2, 650)
        held.lengths[2] = 650
        for layer in shapes:
            wanted[2, layer] = [part[:, :650] for part in wanted[1, layer]]
        for key in range(3):
            held.move(held.rows[key], [5, 9, 7], 4)
            for layer in shapes:
                read = held.read(layer, held.rows[key], held.lengths[key])
                for got, want in zip(read, wanted[key, layer], strict=True):
                    moved = want.clone()
                    moved[:, 4:7] = want[:, [5, 9, 7]]
                    assert torch.equal(got[0], moved) and got.dtype == kinds[layer]
    held.check(range(3))


def test_the_owner_may_convert_the_model_between_calls() -> None:
    made = tiny.model(dtype=torch.float32)
    runner = choice.on_torch(made)
    prompt = some(7, 20)
    write(runner, 0, prompt)
    runner.free(0)
    made.double()
    assert write(runner, 1, prompt) == write(choice.on_torch(made), 0, prompt)


# --- a text that is read once ---


@pytest.mark.parametrize("length", [0, 1, 299, 300])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_fork_writes_what_it_would_have_written_and_so_does_its_source(
    prefix_cache: bool, length: int
) -> None:
    prompt, other = some(8, 301), some(9, 20)
    runner = choice.on_torch(model(), max_batch=3, prefix_cache=prefix_cache)
    wanted = write(choice.on_torch(model()), 0, prompt, 12)
    base.begin(runner, 0, prompt)
    with torch.inference_mode():
        tree = TokenTree([prompt[-1], 9, 9], [-1, 0, 0])
        runner.forward([Work(0, prompt[:-1], tree)])
        assert base.fork(runner, 1, 0, length)
        assert (runner.cached(0), runner.cached(1), runner.ran(1)) == (300, length, 0)
        runner.keep(0, [0])  # its tree is still there
    branch = [*prompt[:length], *other]
    assert write(runner, 1, branch, 12) == write(choice.on_torch(model()), 0, branch, 12)
    runner.crop(0, 300)
    assert write(runner, 0, prompt, 12) == wanted
    runner.check([0, 1])
    runner.free(1)
    runner.free(0)
    runner.check([])
    if prefix_cache:
        runner.begin(2, [*branch, 5])
        assert runner.cached(2) >= len(branch)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_an_heir_goes_on_with_the_row(prefix_cache: bool) -> None:
    prompt = some(10, 400)
    wanted = write(choice.on_torch(model()), 0, prompt)
    runner = choice.on_torch(model(), max_batch=1 + prefix_cache, prefix_cache=prefix_cache)
    if prefix_cache:  # the heir took over something that is worse
        base.begin(runner, 5, prompt[:10])
        write(runner, 5, prompt[:10])
        runner.free(5)
    base.begin(runner, 0, prompt)
    write(runner, 0, prompt)
    if prefix_cache:
        base.begin(runner, 1, [*prompt[:10], 4])
    row = runner._cache.rows[0]
    assert base.hand_over(runner, 0, 1, 399)
    assert runner._cache.rows[1] == row and runner.cached(1) == 399 and runner.cached(0) == 0
    runner.check([1])
    assert write(runner, 1, prompt) == wanted
    runner.free(1)
    runner.check([])
    if prefix_cache:
        runner.begin(2, [*prompt, *wanted])
        assert runner.cached(2) >= 400


def test_a_fork_without_room_leaves_both_as_they_were(refuse: Callable[[int], list[int]]) -> None:
    prompt = some(11, 300)
    runner = choice.on_torch(model(), max_batch=2)
    wanted = write(runner, 0, prompt)
    for number in range(1, 9):
        refuse(number)
        with pytest.raises(MemoryError):
            runner.fork(1, 0, 299)
        assert runner.cached(1) == 0 and runner.cached(0) >= 299
        runner.check([0, 1])
    runner.free(1)
    refuse(0)
    runner.fork(1, 0, 299)
    assert write(runner, 1, prompt) == wanted


def test_a_runner_without_hooks_says_no() -> None:
    assert not base.fork(object(), 1, 0, 5)  # type: ignore[arg-type]
    assert not base.hand_over(object(), 0, 1, 5)  # type: ignore[arg-type]


# --- what is held ---


def test_the_check_finds_what_is_held_too_long_or_twice() -> None:
    def broken(change: Callable[[TorchRunner], Any]) -> None:
        runner = choice.on_torch(model(), max_batch=3, prefix_cache=True)
        for key in range(2):
            runner.begin(key, some(key, 20))
            write(runner, key, some(key, 20))
        runner.check([0, 1])
        change(runner)
        with pytest.raises(AssertionError):
            runner.check([0, 1])

    def share(runner: TorchRunner) -> None:
        runner._cache.rows[1] = runner._cache.rows[0]

    def park(runner: TorchRunner) -> None:
        runner._cache._parked[runner._cache.rows[0]] = array("q", [1])

    def lengthen(runner: TorchRunner) -> None:
        runner._cache.lengths[0] = FIRST_SLOTS + 1

    def forget(runner: TorchRunner) -> None:
        del runner._tokens[0][5:]

    broken(share)
    broken(park)
    broken(lengthen)
    broken(forget)
    broken(lambda runner: runner._cache.row_of(2))
    broken(lambda runner: runner._tokens.update({2: array("q")}))
    broken(lambda runner: runner._scratch.update({2: committed.Scratch(None, 0)}))


# --- what an earlier request cached ---


def test_the_shared_length_is_that_of_the_lists() -> None:
    rng = Random(0)
    for _ in range(300):
        a, b = ([rng.randrange(2) for _ in range(rng.randrange(12))] for _ in range(2))
        assert shared_length(array("q", a), array("q", b)) == len(commonprefix([a, b]))


def test_adoption_reads_long_texts_as_memory() -> None:
    rows, texts = Rows(8), [[1] * 32_000 + [number] for number in range(8)]
    for key, text in enumerate(texts):
        rows.row_of(key)
        rows.lengths[key] = len(text)
        rows.release(key, array("q", text))
    began = time.perf_counter()
    shared = [len(commonprefix([text, texts[5]])) for text in texts]
    slow = time.perf_counter() - began
    assert max(shared) == 32_001
    quick = []
    for key in range(100, 103):
        began = time.perf_counter()
        assert rows.adopt(key, texts[5]) == 32_001
        quick.append(time.perf_counter() - began)
        rows.release(key, array("q", texts[5]))
    assert min(quick) < slow / 3


# --- interrupts: nothing is trusted that was not written ---

TEXT = list(range(1000, 1040))


class Ledger(Rows):
    """Slots that hold the tokens themselves."""

    def __init__(self) -> None:
        super().__init__(4)
        self.slots = {row: [0] * 64 for row in range(4)}

    def vacated(self, row: int) -> None:
        self.slots[row] = [0] * 64

    def move(self, row: int, sources: Sequence[int], to: int) -> None:
        for at, token in enumerate([self.slots[row][slot] for slot in sources]):
            self.slots[row][to + at] = token

    def copy(self, source: int, key: int, slots: int) -> None:
        row = self.row_of(key)
        for slot in range(slots):
            self.slots[row][slot] = self.slots[self.rows[source]][slot]


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
        for row, tokens in self.ledger._parked.items():
            assert list(tokens) == self.ledger.slots[row][: len(tokens)]

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


FILES = (kv.__file__, committed.__file__)


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
