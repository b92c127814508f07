"""Texts that are read once: forks, heirs, what an earlier request cached, what is held."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from os.path import commonprefix
from random import Random
from typing import Any

import pytest
import torch

from draftproof.runners import base, choice, committed
from draftproof.runners.base import Work
from draftproof.runners.rows import FIRST_SLOTS, Parked, Rows, shared_length
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree
from writing_rows import model, some, write

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


def test_a_fork_without_room_leaves_both_as_they_were(
    refuse_tensor: Callable[[int], list[int]],
) -> None:
    prompt = some(11, 300)
    runner = choice.on_torch(model(), max_batch=2)
    wanted = write(runner, 0, prompt)
    for number in range(1, 1 + 2 * runner.layers):  # keys and values of each
        refuse_tensor(number)
        with pytest.raises(MemoryError):
            runner.fork(1, 0, 299)
        assert runner.cached(1) == 0 and runner.cached(0) >= 299
        runner.check([0, 1])
    runner.free(1)
    refuse_tensor(0)
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
        runner._cache._parked[runner._cache.rows[0]] = Parked(array("q", [1]))

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


def test_adoption_of_long_texts() -> None:
    rows, texts = Rows(8), [[1] * 32_000 + [number] for number in range(8)]
    for key, text in enumerate(texts):
        rows.row_of(key)
        rows.lengths[key] = len(text)
        rows.release(key, array("q", text))
    for key in range(100, 103):
        row, length = rows.likest(array("q", texts[5]))
        assert length == 32_001 == max(len(commonprefix([text, texts[5]])) for text in texts)
        rows.adopt(key, row, length)
        rows.release(key, array("q", texts[5]))
