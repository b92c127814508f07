"""The drafting methods: n-grams against a naive search; draft models in awkward company."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.drafting.base import Drafter
from draftproof.request import Request
from draftproof.tree import TokenTree
from tiny import other_size

PROMPTS = [[5, 6, 7], [8], [9, 10, 9, 10, 9, 10], [11 + i for i in range(30)]]


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", dtype=torch.float64)


@cache
def relative() -> PreTrainedModel:
    return tiny.relative(target())


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(
        **{"temperature": 1.0, "seed": 1, "max_tokens": 30, "ignore_eos": True, **options}
    )


@cache
def plain(**options: Any) -> list[list[int]]:
    with dp.LLM(target()) as llm:
        return [out.token_ids for out in llm.generate(PROMPTS, params(**options))]


def written(proposer: Any, rule: str = "coupled", **options: Any) -> list[dp.Completion]:
    with dp.LLM(target(), speculate=proposer, rule=rule, max_batch=3) as llm:
        return llm.generate(PROMPTS, params(**options))


def tokens_of(outs: Sequence[dp.Completion]) -> list[list[int]]:
    return [out.token_ids for out in outs]


def accepted(outs: Sequence[dp.Completion]) -> int:
    return sum(out.stats.accepted for out in outs)


def request(tokens: Sequence[int], key: int = 0, **options: Any) -> Request:
    return Request(key, tokens, params(**{"max_tokens": 100, **options}), seed=1)


def branches(tree: TokenTree) -> list[list[int]]:
    """The tokens from below node 0 to each leaf."""
    return [tree.path_tokens(i) for i in range(1, len(tree)) if not tree.children(i)]


# --- n-grams ---


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


def in_turns(a: dp.LLM, b: dp.LLM) -> list[list[int]]:
    """What two LLMs stream after PROMPTS[2] and PROMPTS[3], a chunk of each in turn."""
    streams = [a.stream(PROMPTS[2], params()), b.stream(PROMPTS[3], params())]
    got: list[list[int]] = [[], []]
    for _ in range(60):
        for stream, tokens in zip(streams, got, strict=True):
            chunk = next(stream, None)
            tokens += chunk.token_ids if chunk else []
    return got


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


# --- draft models ---


@pytest.mark.parametrize(
    "options",
    [{"num_draft_tokens": 0}, {"branch": 0}, {"min_confidence": 1.5}, {"min_confidence": -1}],
)
def test_draft_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dp.DraftModel(relative(), **options)


class Spy(Drafter):
    """Notes the trees of a proposer."""

    def __init__(self, proposer: Any) -> None:
        self.proposer, self.trees = proposer, []
        self.bind, self.release = proposer.bind, proposer.release  # type: ignore[method-assign]

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        made = self.proposer.propose(requests)
        self.trees += zip([(r.rule, r.room) for r in requests], made, strict=True)
        return made


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("branch", [1, 3])
def test_the_shape_of_a_draft(rule: str, branch: int) -> None:
    spy = Spy(dp.DraftModel(relative(), 4, min_confidence=0.0, branch=branch))
    outs = written(spy, rule)
    if rule == "coupled":
        assert tokens_of(outs) == plain()
    sizes = set()
    for (_, room), tree in spy.trees:
        depths = tree.depths
        sizes.add(len(tree) - 1)
        assert max(depths) <= min(4, max(room - 1, 0))
        for depth in range(1, max(depths) + 1):
            level = [i for i in range(len(tree)) if depths[i] == depth]
            assert len(level) == branch and len({tree.parents[i] for i in level}) == 1
            kinds = {tree.tokens[i] for i in level}
            assert len(kinds) == branch, "the same token twice"
        if rule == "coupled":
            assert tree.laws is None
        elif len(tree) > 1:
            assert tree.laws is not None and tree.laws.shape == (len(tree), tiny.VOCABULARY)
            for i in range(1, len(tree)):
                law = tree.laws[i]
                assert abs(law.double().sum() - 1) < 1e-6 and law.min() >= 0
                assert law[tree.tokens[i]] > 0
                older = [c for c in tree.children(tree.parents[i]) if c < i]
                assert all(law[tree.tokens[c]] == 0 for c in older), "drawn with replacement"
    assert 4 * branch in sizes
    assert accepted(outs) > 0


def test_a_draft_stops_after_a_doubtful_token_which_it_keeps() -> None:
    doubting = Spy(dp.DraftModel(relative(), 6, min_confidence=1.0, branch=1))
    outs = written(doubting, temperature=1.7)
    assert tokens_of(outs) == plain(temperature=1.7)
    assert {len(tree) for _, tree in doubting.trees} <= {1, 2}
    assert accepted(outs) > 0
    somewhat = Spy(dp.DraftModel(relative(), 6, min_confidence=0.3, branch=1))
    assert tokens_of(written(somewhat, temperature=0.3)) == plain(temperature=0.3)
    assert len({len(tree) for _, tree in somewhat.trees}) > 2


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.0}, {"top_k": 4, "presence_penalty": 1.0}]
)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_target_as_its_own_draft_is_always_right(rule: str, options: dict[str, Any]) -> None:
    outs = written(dp.DraftModel(target(), 5, min_confidence=0.0, branch=1), rule, **options)
    for out in outs:
        assert out.stats.accepted == out.stats.drafted
        assert out.stats.steps == 5  # 30 tokens, 6 a step
    if rule == "coupled":
        assert tokens_of(outs) == plain(**options)


def test_a_request_longer_than_the_drafts_context_goes_on_without_it() -> None:
    short = tiny.model("llama", dtype=torch.float64, max_position_embeddings=24)
    short.load_state_dict(relative().state_dict())
    spy = Spy(dp.DraftModel(short, 5, min_confidence=0.0))
    outs = written(spy)
    assert tokens_of(outs) == plain()
    assert outs[0].stats.drafted > 0 and outs[3].stats.drafted == 0
    assert all(out.finish_reason == "length" for out in outs)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("vocabulary", [tiny.VOCABULARY - 9, tiny.VOCABULARY + 7])
def test_vocabularies_that_differ_by_padding(vocabulary: int, rule: str) -> None:
    made = other_size(vocabulary, relative(), bias=5.0)
    for branch in (1, 2):
        proposer = dp.DraftModel(made, 4, min_confidence=0.0, branch=branch)
        outs = written(proposer, rule, logit_bias={tiny.VOCABULARY - 1: 2.0, 5: 1.0})
        assert all(len(out.token_ids) == 30 and out.finish_reason == "length" for out in outs)
        said = [warning for out in outs for warning in out.warnings]
        assert all("has no row for token id" in warning for warning in said)
        assert accepted(outs) > 0
        if rule == "coupled":
            assert tokens_of(outs) == plain_biased()


@cache
def plain_biased() -> list[list[int]]:
    with dp.LLM(target()) as llm:
        bias = {tiny.VOCABULARY - 1: 2.0, 5: 1.0}
        return tokens_of(llm.generate(PROMPTS, params(logit_bias=bias)))


def test_a_prompt_with_tokens_that_the_draft_does_not_have() -> None:
    made = other_size(60, relative())
    prompts = [[5, 6, 90, 7], [5, 6, 7], [95]]
    with dp.LLM(target()) as llm:
        want = tokens_of(llm.generate(prompts, params()))
    with dp.LLM(target(), speculate=dp.DraftModel(made, 4, min_confidence=0.0)) as llm:
        assert tokens_of(llm.generate(prompts, params())) == want


def test_really_different_vocabularies_are_refused_with_both_sizes() -> None:
    other = tiny.model("llama", vocab_size=5000)
    with pytest.raises(ValueError, match="5000") as caught:
        dp.LLM(target(), speculate=dp.DraftModel(other))
    assert str(tiny.VOCABULARY) in str(caught.value)


def breaks_after(calls: int) -> PreTrainedModel:
    """A draft whose pass raises from the given call on."""
    made, left = copy.deepcopy(relative()), [calls]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of luck")

    made.model.layers[1].register_forward_pre_hook(count)
    return made


@pytest.mark.parametrize("calls", [6, 9, 14, 23])
def test_a_draft_that_breaks_in_the_middle(calls: int) -> None:
    outs = written(dp.DraftModel(breaks_after(calls), 4, min_confidence=0.0))
    assert tokens_of(outs) == plain()
    assert all(out.finish_reason == "length" for out in outs)
    assert any("out of luck" in warning for out in outs for warning in out.warnings)


def test_a_draft_of_nans_changes_nothing() -> None:
    for rule in ("coupled", "rejection"):
        broken = copy.deepcopy(relative())
        with dp.LLM(target(), speculate=dp.DraftModel(broken, 4), rule=rule) as llm:
            with torch.no_grad():
                broken.lm_head.weight[7] = torch.nan
            outs = llm.generate(PROMPTS, params())
        assert all(out.finish_reason == "length" and out.error is None for out in outs)
        assert all(out.warnings for out in outs)
        if rule == "coupled":
            assert tokens_of(outs) == plain()


def test_a_draft_in_another_precision() -> None:
    half = copy.deepcopy(relative()).to(torch.bfloat16)
    outs = written(dp.DraftModel(half, 4, min_confidence=0.0))
    assert tokens_of(outs) == plain() and accepted(outs) > 0
    outs = written(dp.DraftModel(half, 4, min_confidence=0.0, branch=2), "rejection")
    assert all(out.finish_reason == "length" and not out.warnings for out in outs)


def test_a_draft_of_another_architecture() -> None:
    other = tiny.model("gemma3", dtype=torch.float64)
    outs = written(dp.DraftModel(other, 4, min_confidence=0.0, branch=2))
    assert tokens_of(outs) == plain()


def test_one_draft_model_serves_two_llms_one_after_the_other() -> None:
    shared = dp.DraftModel(relative(), 4, min_confidence=0.0)
    for _ in range(2):
        assert tokens_of(written(shared)) == plain()


def test_one_draft_model_serves_two_llms_at_once_or_is_refused() -> None:
    shared = dp.DraftModel(relative(), 4, min_confidence=0.0)
    with dp.LLM(target(), speculate=shared) as a:
        try:
            b = dp.LLM(target(), speculate=shared)
        except ValueError:
            return
        got = in_turns(a, b)
    assert got == plain()[2:]


def test_more_requests_than_places_in_the_draft() -> None:
    prompts = PROMPTS * 3
    proposer = dp.DraftModel(relative(), 4, min_confidence=0.0)
    with dp.LLM(target(), speculate=proposer, max_batch=2) as llm:
        outs = llm.generate(prompts, params())
        keys = range(12)
        assert all(proposer.beside.runner.cached(key) == 0 for key in keys), "rows outlive requests"
    assert tokens_of(outs) == plain() * 3
    assert all(out.warnings == [] for out in outs)


# --- several at once ---


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_list_is_merged(rule: str) -> None:
    parts = [
        Spy(dp.NGram(min_ngram=1)),
        Spy(dp.DraftModel(relative(), 3, min_confidence=0.0)),
        Spy(dp.DraftModel(tiny.relative(target(), seed=2), 3, min_confidence=0.0, branch=2)),
    ]
    outs = written(parts, rule)
    if rule == "coupled":
        assert tokens_of(outs) == plain()
    alone = written(parts[1].proposer, rule)
    assert all(part.trees for part in parts) and accepted(outs) > 0
    if rule == "coupled":  # what one of them would have had accepted is in the tree
        steps = [sum(out.stats.steps for out in each) for each in (outs, alone)]
        assert steps[0] <= steps[1]


def test_a_list_of_one_of_none_and_of_names() -> None:
    for speculate in ([], [None], ["none"], ["ngram"], ["none", "ngram"], ("ngram", dp.NGram(2))):
        assert tokens_of(written(speculate)) == plain()


def test_one_part_of_a_list_that_breaks_does_not_take_the_request_down() -> None:
    class Broken:
        taps: tuple[int, ...] = ()

        def bind(self, target: Any) -> None: ...
        def release(self, request: Any) -> None: ...
        def propose(self, requests: Any) -> Any:
            raise RuntimeError("out of luck")

    outs = written([Broken(), dp.DraftModel(relative(), 3)])
    assert tokens_of(outs) == plain()
    assert any("out of luck" in warning for out in outs for warning in out.warnings)


def test_parts_of_a_list_need_only_taps_and_propose() -> None:
    bare = SimpleNamespace(
        taps=(), propose=lambda requests: [TokenTree.chain([r.tokens[-1], 5]) for r in requests]
    )
    assert tokens_of(written([bare, "ngram"])) == plain()
