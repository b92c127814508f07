"""Draft models in awkward company."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.runners.base import Output, Work
from proposing import (
    PROMPTS,
    Spy,
    accepted,
    in_turns,
    params,
    plain,
    relative,
    target,
    tokens_of,
    written,
)
from tiny import other_size


@pytest.mark.parametrize(
    "options",
    [
        *({"num_draft_tokens": 0}, {"branch": 0}, {"min_confidence": 1.5}, {"min_confidence": -1}),
        {"num_draft_tokens": 3, "tree": "auto"},
    ],
)
def test_draft_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dp.DraftModel(relative(), **options)


def test_a_tree_without_nodes_runs_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = dp.DraftModel(relative(), tree=[])
    monkeypatch.setattr(proposer, "draw", lambda *_: pytest.fail("drawn for no children"))
    spy = Spy(proposer)
    assert tokens_of(written(spy, "coupled")) == plain()
    assert spy.trees and {len(tree) for _, tree in spy.trees} == {1}


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
    with dp.LLM(target(), speculate=None) as llm:
        bias = {tiny.VOCABULARY - 1: 2.0, 5: 1.0}
        return tokens_of(llm.generate(PROMPTS, params(logit_bias=bias)))


def test_a_prompt_with_tokens_that_the_draft_does_not_have() -> None:
    made = other_size(60, relative())
    prompts = [[5, 6, 90, 7], [5, 6, 7], [95]]
    with dp.LLM(target(), speculate=None) as llm:
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


@pytest.mark.parametrize("n", [1, 2])
def test_a_draft_reads_no_token_twice(n: int) -> None:
    """Its trees stand behind the text, whose last token it runs with them, and nowhere else."""
    proposer = dp.DraftModel(relative(), 3, min_confidence=0.0)
    sampled = params(temperature=0.9, n=n)
    with dp.LLM(target(), speculate=proposer, rule="rejection") as llm:
        runner, before = proposer.beside.runner, []

        def run(work: Sequence[Work], *args: Any) -> list[Output]:
            before.extend(runner.cached(each.key) + len(each.new) for each in work if each.tree)
            return forward(work, *args)

        forward, runner.forward = runner.forward, run
        llm.generate(PROMPTS[3], sampled)
    assert before[0] == len(PROMPTS[3]) - 1
