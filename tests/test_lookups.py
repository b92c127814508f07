"""What drafts without a model: the automaton, the window, the budget, bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
import oracles
from drafters import METHODS, target
from draftproof.drafting.automaton import Automaton
from draftproof.request import Request
from draftproof.tree import TokenTree, merge
from draftproof.writing import Feedback
from method_prompts import GREEDY, PROMPTS

TEXTS = st.lists(st.integers(0, 2), max_size=24)


@given(TEXTS, TEXTS)
def test_the_automaton_knows_every_substring(text: list[int], query: list[int]) -> None:
    automaton = Automaton()
    for token in text:
        automaton.append(token)

    def occurrences(part: list[int]) -> int:
        return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))

    state, length = automaton.match(query)
    suffixes = [query[i:] for i in range(len(query) + 1)]
    assert length == next(len(suffix) for suffix in suffixes if not suffix or occurrences(suffix))
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            part = text[start:end]
            state, length = automaton.match(part)
            assert length == len(part) and automaton.count[state] == occurrences(part)
    assert len(automaton.next) <= max(2, 2 * len(text))  # linear (Blumer et al.)


def request(tokens: list[int], key: int = 0, **options: Any) -> Request:
    params = dp.SamplingParams(max_tokens=500, **options)
    return Request(key, tokens, params, seed=0, max_length=10_000)


def test_a_suffix_tree_is_weighted_by_frequency() -> None:
    proposer = dp.SuffixAutomaton(4, min_match=1, min_share=0.3)
    proposer.bind(None, None)  # type: ignore[arg-type]
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 3, 8, 5, 1, 2]
    (tree,) = proposer.propose([request(text)])
    sequences = {tuple(tree.path_tokens(i)): tree.scores[i] for i in range(1, len(tree))}
    assert sequences[3,] == pytest.approx(3 / 4)
    assert sequences[3, 8] == pytest.approx(3 / 4 * 2 / 3)
    assert (4,) not in sequences and len(tree) == 3


def test_what_earlier_requests_wrote_is_remembered_within_bounds() -> None:
    proposer = dp.SuffixAutomaton(4, corpus=60)
    proposer.bind(None, None)  # type: ignore[arg-type]
    first = request([1, 2])
    first.tokens += [10, 11, 12, 13, 14]
    proposer.propose([first])
    proposer.release(first)
    (tree,) = proposer.propose([request([5, 10, 11], key=1)])
    assert tree.path_tokens(len(tree) - 1) == [12, 13, 14]
    for key in range(2, 40):
        other = request([1, 2], key=key)
        other.tokens += [20 + key, 21 + key, 22 + key]
        proposer.propose([other])
        proposer.release(other)
        assert proposer._earlier[""].size <= 60 + 4
    (tree,) = proposer.propose([request([5, 10, 11], key=99)])
    assert len(tree) == 1  # forgotten


def test_the_window_is_the_comb_of_the_paper() -> None:
    """W 5, N 4, G 2: 21 tokens, 78 visible pairs (formulae of the release)."""
    proposer = dp.Lookahead(5, 4, 2, from_text=False)
    one = request([3, 4, 5, 6])
    for step in range(4):
        (tree,) = proposer.propose([one])
        best = [7 + step] * len(tree)
        one.feedback = Feedback(tree, [0], {}, best)
    state = next(iter(proposer._states.values()))
    assert [len(row) for row in state.rows] == [4, 5, 5]
    state.pool[6] = OrderedDict({(1, 2, 3): None, (4, 5, 6): None})
    (tree,) = proposer.propose([one])
    assert len(tree) == 21 and int(tree.ancestors().sum()) == 78
    assert tree.path_tokens(3) == [4, 5, 6]  # the latest guess first
    depths = sorted(tree.depths[node] for node in state.ends)
    assert depths == [2, 3, 4, 5, 6]  # row 2 of column j stands at 2 + j


def test_guesses_with_one_beginning_share_its_nodes() -> None:
    """Else the rejection rule, having accepted one of them, would lose the others."""
    proposer = dp.Lookahead(1, 4, 3, from_text=False)
    one = request([3, 4, 5, 6])
    proposer.propose([one])
    guesses = [(1, 2, 3), (1, 2, 7), (8, 2, 3)]
    next(iter(proposer._states.values())).pool[6] = OrderedDict.fromkeys(guesses)
    (tree,) = proposer.propose([one])
    drafted = {tuple(tree.path_tokens(i)) for i in range(1, len(tree))}
    assert drafted >= set(guesses) and len(drafted) == len(tree) - 1 == 3 + 1 + 3


def test_nodes_are_found_again_in_a_merged_tree() -> None:
    ours = TokenTree([1, 2, 2, 3, 4], [-1, 0, 0, 1, 2])
    other = TokenTree([1, 5, 2, 4], [-1, 0, 0, 2])
    whole = merge([other, ours])
    found = ours.within(whole)
    assert [whole.path_tokens(at) for at in found] == [ours.path_tokens(i) for i in range(5)]
    assert found[1] == found[2]  # equal siblings are one node there
    cut = TokenTree([1, 2, 4], [-1, 0, 1])
    assert ours.within(cut) == [0, 1, 1, -1, 2]
    assert TokenTree.chain([1, 9, 1]).within(cut) == [0, -1, -1]


def test_lookahead_finds_what_repeats_without_reading_the_text() -> None:
    with dp.LLM(target("llama"), speculate=dp.Lookahead(6, 3, 4, from_text=False)) as llm:
        done = llm.generate(PROMPTS, replace(GREEDY, max_tokens=120))
    assert sum(one.stats.accepted for one in done) > 20


@given(oracles.trees(vocabulary=3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_budget_keeps_the_best_connected_nodes(tree: TokenTree, count: int, rng: Random) -> None:
    scores = [1.0]
    for i in range(1, len(tree)):
        scores.append(scores[tree.parents[i]] * rng.random())
    scored = TokenTree(tree.tokens, tree.parents, scores=scores)
    best = scored.best(count)
    assert len(best) == min(count, len(tree)) and best.scores is not None
    wanted = sorted(scores, reverse=True)[: len(best)]
    assert sorted(best.scores, reverse=True) == pytest.approx(wanted)


HOLD = ("draftproof.proposers", "draftproof.drafting")
BY_OTHERS = {"_earlier", "_calibrations"}  # by salt and by sort of text: bounded


def held(thing: Any, seen: set[int] | None = None) -> int:
    """Entries of every container by request that a proposer and its parts hold."""
    seen = set() if seen is None else seen
    ours = any(each.__module__.startswith(HOLD) for each in type(thing).__mro__)
    if id(thing) in seen or not ours:
        return 0
    seen.add(id(thing))
    size = 0
    for name, value in getattr(thing, "__dict__", {}).items():  # what has slots holds none
        by_request = name.startswith("_") and name not in BY_OTHERS
        if by_request and isinstance(value, dict | WeakKeyDictionary):
            size += len(value)
        parts = value if isinstance(value, list | tuple) else [value]
        size += sum(held(part, seen) for part in parts)
        size += len(value._rows.lengths) if hasattr(value, "_rows") else 0
    return size


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_20000_tokens_stay_bounded_and_acceptance_does_not_decay(method: str) -> None:
    suffix = dp.SuffixAutomaton(min_match=1, corpus=5000)
    made = suffix if method == "suffix" else METHODS[method]("llama")
    params = dp.SamplingParams(temperature=0.8, max_tokens=500, ignore_eos=True)
    with dp.LLM(target("llama"), speculate=made, max_batch=4) as llm:
        done = []
        for begin in range(0, 40, 4):
            each = [replace(params, seed=seed % 4) for seed in range(begin, begin + 4)]
            done += llm.generate(PROMPTS, each)
            assert not llm.runner._rows.lengths and not held(made)
        assert not any(one.warnings for one in done)
    rates = [one.stats.tokens_per_step for one in done]
    assert sum(rates[-4:]) >= 0.95 * sum(rates[:4])
    assert method != "suffix" or suffix._earlier[""].size <= 5000 + 4 * 501
