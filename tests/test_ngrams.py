"""N-grams of a growing text: the compiled ones draft what those in Python do."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import native
from draftproof.drafting.compiled import CompiledNGrams, ngrams
from draftproof.drafting.ngrams import NGrams

compiled = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


def places(text: list[int], size: int) -> list[tuple[int, int]]:
    """Of what ends the text: how long it matches, and where, the best first."""
    found = []
    for place in range(len(text) - 1, 0, -1):
        same = 0
        while same < min(place, 32) and text[place - 1 - same] == text[-1 - same]:
            same += 1
        if same >= size:
            found.append((same, place))
    return sorted(found[:16], reverse=True)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 4))
def test_the_longest_match_is_followed(text: list[int], size: int, branches: int) -> None:
    made = NGrams(size)
    tokens, parents, scores = made.draft(0, text, 5, 3, branches)
    matches = places(text, size)
    assert (tokens[0], parents[0], scores[0]) == (text[-1], -1, 1.0)
    if not matches:
        assert len(tokens) == 1
        return
    enough, place = min(3, matches[0][0]), matches[0][1]
    best = text[place : place + 5]
    assert tokens[1 : 1 + len(best)] == best
    assert scores[1] == matches[0][0] / (matches[0][0] + 1)
    paths = {tuple(path(tokens, parents, node)) for node in range(1, len(tokens))}
    follows = [text[at : at + 5] for length, at in matches if length >= enough]
    assert all(any(list(each) == follow[: len(each)] for follow in follows) for each in paths)
    leaves = [node for node in range(1, len(tokens)) if node not in parents]
    assert 1 <= len(leaves) <= branches
    if branches == 4:  # hardly more are followed differently in so small a vocabulary
        assert len({tuple(each) for each in follows} - paths) <= max(0, len(follows) - 4)


def path(tokens: list[int], parents: list[int], node: int) -> list[int]:
    return path(tokens, parents, parents[node]) + [tokens[node]] if node else []


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8), st.data())
def test_what_was_taken_back_is_forgotten(parts: list[list[int]], data: st.DataObject) -> None:
    """And the compiled ones draft the same."""
    size, branches = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    longest, enough = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 4))
    made, fast, text = NGrams(size), ngrams(size), list[int]()
    assert native.found() is None or isinstance(fast, CompiledNGrams)
    for part in parts:
        kept = data.draw(st.integers(0, len(text)))
        text = text[:kept] + part
        if not text:
            continue
        asked = longest, enough, branches
        drafted = made.draft(kept, part, *asked)
        assert drafted == fast.draft(kept, part, *asked) == NGrams(size).draft(0, text, *asked)
        assert made.size == fast.size == len(text)
        parts = [*parts, text]


@compiled
def test_bad_arguments_touch_nothing() -> None:
    library: Any = native.library()
    assert library.dp_ngrams_new(0) is None
    made, ids, scores = library.dp_ngrams_new(2), (ctypes.c_int32 * 9)(), (ctypes.c_double * 9)()
    good = [made, 0, ids, 3, 2, 4, 2, ids, ids, scores]
    for at, wrong in ((0, None), (1, 1), (1, -1), (3, 0), (3, -1), (3, 1 << 30), (4, -1), (5, 0)):
        asked = [*good[:at], wrong, *good[at + 1 :]]
        assert library.dp_ngrams_draft(*asked) == native.BAD_ARGUMENT
    for at in (2, 7, 8, 9):
        assert library.dp_ngrams_draft(*good[:at], None, *good[at + 1 :]) == native.BAD_ARGUMENT
    assert library.dp_ngrams_draft(*good) > 1  # "0 0 0"
    library.dp_ngrams_free(made)
    library.dp_ngrams_free(None)


def test_ngrams_longer_than_matches_that_are_told_apart_are_found() -> None:
    text = [*range(50)] * 2
    slow, fast = [each.draft(0, text, 8, 40, 2) for each in (NGrams(40), ngrams(40))]
    assert slow == fast and slow[0][1:] == [*range(8)]


def test_any_number_of_branches_may_be_asked_for() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    assert ngrams(2).draft(0, text, 8, 2, 1 << 40) == NGrams(2).draft(0, text, 8, 2, 1 << 40)
