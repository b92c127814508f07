"""N-grams against a naive search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
from draftproof.request import Request
from draftproof.tree import TokenTree
from proposing import in_turns, params, plain, target, tokens_of, written


def request(tokens: Sequence[int], key: int = 0, **options: Any) -> Request:
    return Request(key, tokens, params(**{"max_tokens": 100, **options}), seed=1)


def branches(tree: TokenTree) -> list[list[int]]:
    """The tokens from below node 0 to each leaf."""
    return [tree.path_tokens(i) for i in range(1, len(tree)) if not tree.children(i)]


def match(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` equal the last ones."""
    size = 0
    while size < place and tokens[place - 1 - size] == tokens[-1 - size]:
        size += 1
    return size


def check_ngram(tokens: list[int], tree: TokenTree, options: dict[str, int]) -> None:
    """What a naive search over every place in the text demands of a tree."""
    length, high, low = options["num_draft_tokens"], options["max_ngram"], options["min_ngram"]
    assert tree.tokens[0] == tokens[-1] and tree.laws is None
    sizes = {place: match(tokens, place) for place in range(1, len(tokens))}
    longest = max((min(size, high) for size in sizes.values()), default=0)
    found = branches(tree)
    if longest < low:
        assert len(tree) == 1
        return
    assert 1 <= len(found) <= options["branches"]
    best = {
        tuple(tokens[p : p + length]) for p, size in sizes.items() if min(size, high) == longest
    }
    for branch in found:  # each is what followed a longest match
        assert tuple(branch) in best
    siblings = [(p, t) for p, t in zip(tree.parents, tree.tokens, strict=True)]
    assert len(set(siblings)) == len(siblings), "not merged"
    different = {
        branch for branch in best if not any(o[: len(branch)] == branch != o for o in best)
    }
    assert len(found) >= min(len(different), options["branches"], 1)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_ngram_equals_a_naive_search(
    tokens: list[int], length: int, low: int, more: int, count: int
) -> None:
    options = {
        "num_draft_tokens": length,
        "max_ngram": low + more,
        "min_ngram": low,
        "branches": count,
    }
    (tree,) = dp.NGram(**options).propose([request(tokens)])
    check_ngram(tokens, tree, options)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.data())
def test_ngram_that_learns_as_it_goes_equals_one_that_starts_afresh(
    tokens: list[int], data: st.DataObject
) -> None:
    going = dp.NGram(4, min_ngram=1)
    cut = data.draw(st.integers(1, len(tokens)))
    each = request(tokens[:cut])
    while True:
        (tree,) = going.propose([each])
        (fresh,) = dp.NGram(4, min_ngram=1).propose([each])
        assert (list(tree.tokens), list(tree.parents)) == (list(fresh.tokens), list(fresh.parents))
        done = len(each.tokens)
        if done == len(tokens):
            return
        each.tokens += tokens[done : done + data.draw(st.integers(1, 5))]


def test_ngram_finds_what_is_obvious() -> None:
    proposer = dp.NGram(3, max_ngram=3, min_ngram=2, branches=2)
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 1, 2, 3]
    (tree,) = proposer.propose([request(text)])
    assert sorted(branches(tree)) == [[4, 5, 9], [7, 8, 9]]
    (tree,) = proposer.propose([request([1, 2, 3, 4, 5, 6, 2, 3], key=1)])
    assert branches(tree) == [[4, 5, 6]]
    (tree,) = proposer.propose([request([1, 2, 3, 4], key=2)])
    assert len(tree) == 1


def test_the_longest_match_wins_over_the_latest() -> None:
    proposer = dp.NGram(2, max_ngram=3, min_ngram=1, branches=1)
    (tree,) = proposer.propose([request([1, 2, 3, 50, 51, 9, 3, 60, 61, 1, 2, 3])])
    assert branches(tree) == [[50, 51]]


def test_requests_do_not_share_their_text() -> None:
    proposer = dp.NGram(min_ngram=1)
    trees = proposer.propose([request([1, 2, 1], 0), request([1, 3, 1], 1), request([1], 2)])
    assert [list(tree.tokens[1:2]) for tree in trees] == [[2], [3], []]


def test_a_key_that_is_used_again_starts_afresh() -> None:
    proposer = dp.NGram(min_ngram=1)
    first = request([1, 2, 1, 2, 1])
    proposer.propose([first])
    proposer.release(first)
    (tree,) = proposer.propose([request([1, 3, 1])])
    assert tree.tokens[1] == 3


@pytest.mark.parametrize("name", ["ngram", dp.NGram(), dp.NGram(3, max_ngram=1, min_ngram=1)])
def test_ngram_by_name_or_by_object_changes_nothing(name: Any) -> None:
    outs = written(name)
    assert tokens_of(outs) == plain()


def test_one_ngram_serves_two_llms() -> None:
    shared = dp.NGram(min_ngram=1)
    with dp.LLM(target(), speculate=shared) as a, dp.LLM(target(), speculate=shared) as b:
        got = in_turns(a, b)
    assert got == plain()[2:]


@pytest.mark.parametrize(
    "options",
    [
        {"num_draft_tokens": 0},
        {"min_ngram": 0},
        {"min_ngram": 5, "max_ngram": 4},
        {"branches": 0},
        {"num_draft_tokens": -1},
    ],
)
def test_ngram_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        dp.NGram(**options)
