"""Texts that end inside a draft, and the counters of a draft that is always right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import facade
from drafters import Eager
from draftproof.drafting.base import Drafter
from draftproof.drafting.step import Step
from draftproof.drafting.together import passed
from draftproof.engine import Engine
from draftproof.proposers.suffix import Earlier
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.writing import Writing
from fakes import Table, request, run
from prophets import Prophet, prophecy


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_max_tokens_inside_a_draft(max_tokens: int) -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_tokens=max_tokens))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    assert each.output == future[:max_tokens] and each.finish_reason == "length"
    stats = each.stats
    assert stats.tokens == max_tokens
    assert stats.steps == -(-max_tokens // 7)
    assert stats.accepted == max_tokens - stats.steps  # accepted + 1 tokens a step
    assert sum(each.from_draft) == stats.accepted


@pytest.mark.parametrize("length", range(3, 16))
def test_max_length_inside_a_draft(length: int) -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_length=length))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    assert each.output == future[: length - 2] and each.finish_reason == "length"


def test_end_of_text_inside_a_draft() -> None:
    _, future = prophecy(request(0, [1, 2], 5))
    for end in set(future[:15]):
        at = future.index(end)
        each = request(0, [1, 2], 5, temperature=1.0, max_tokens=60, end_ids=(end,))
        run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
        assert each.output == future[: at + 1] and each.finish_reason == "stop"
        assert each.stats.tokens == at + 1 == len(each.from_draft)
        # the step in which it ended counts what was written, not what was drafted after it
        assert each.stats.accepted == sum(each.from_draft) <= at + 1
        assert len(each.stats.accepted_per_position) <= 6


def test_stats_of_a_perfect_draft() -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_tokens=21))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    stats = each.completion().stats
    assert (stats.steps, stats.drafting_steps, stats.drafted, stats.accepted) == (3, 3, 18, 18)
    assert stats.accepted_per_position == [3] * 6
    assert stats.tokens_per_step == 7 and stats.acceptance_length == 7
    assert each.from_draft == ([True] * 6 + [False]) * 3


def test_stats_of_plain_decoding() -> None:
    each = request(0, [1, 2], 5, max_tokens=9)
    run(Engine(Table(), scheduler=Scheduler(1)), [each])
    stats = each.completion().stats
    assert (stats.steps, stats.drafted, stats.accepted) == (9, 0, 0)
    assert stats.tokens_per_step == 1 and stats.acceptance_length == 1
    assert stats.began <= stats.first_token <= stats.ended


class Knowing(Drafter):
    """Drafts what is written next."""

    name, promise = "knowing", 0.9

    def __init__(self, wanted: Sequence[int]) -> None:
        self.wanted = wanted

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        found = [[one.tokens[-1], *self.wanted[len(one.output) :][:3]] for one in requests]
        return [TokenTree.chain(ids, scores=[0.9**at for at in range(len(ids))]) for ids in found]


@pytest.mark.parametrize("how", ["nan", "no memory"])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_drafts_of_a_pass_that_is_made_again_are_not_accepted(rule: str, how: str) -> None:
    greedy = facade.params(max_tokens=40, temperature=0.0)
    with facade.llm() as llm:
        wanted = llm.generate("def f(x):", greedy)[0].token_ids
    with facade.llm(speculate=Eager(Knowing(wanted)), rule=rule) as llm:
        forward, passes = llm.runner.forward, []

        def broken(work: Sequence[Any], *given: Any, **options: Any) -> list[Any]:
            """Every fifth, where it runs drafts."""
            passes.append(work)
            outputs = forward(work, *given, **options)
            if len(passes) % 5 or work[0].tree is None or len(work[0].tree) == 1:
                return outputs
            if how == "no memory":
                raise MemoryError
            nothing = torch.full_like(outputs[0].logits, float("nan"))
            bad = None if outputs[0].argmaxes is None else [-1] * len(outputs[0].argmaxes)
            return [replace(outputs[0], logits=nothing, argmaxes=bad)]

        llm.runner.forward = broken
        (done,) = llm.generate("def f(x):", greedy)
    decisions = done.stats.decisions
    assert done.token_ids == wanted and decisions.plain_steps["again"] > 0
    assert decisions.share("knowing").accepted == done.stats.accepted > 0
    assert [bool(name) for name in decisions.by_token] == done.from_draft
    assert sum(decisions.plain_steps.values()) + done.stats.drafting_steps == done.stats.steps
    assert min(decisions.plain_steps.values()) > 0


def test_what_a_run_gave_is_used_before_the_next_one() -> None:
    """A model's rows may lie in one buffer, which its next pass writes to."""
    buffer, failed = torch.zeros(1), list[int]()

    def run_all(some: Sequence[int]) -> Sequence[torch.Tensor]:
        if len(some) > 1 or some[0] == 2:
            raise MemoryError
        buffer.fill_(some[0])
        return [buffer]

    def stop(one: int, error: Exception) -> None:
        failed.append(one)

    seen = [(one, int(row)) for one, row in passed([1, 2, 3], run_all, stop)]
    assert seen == [(1, 1), (3, 3)] and failed == [2]
    assert [*passed([], run_all, stop)] == []


def test_an_output_beyond_the_corpus_is_cut() -> None:
    kept = Earlier()
    kept.add([7] * 100, 20)
    kept.add([8, 9], 20)
    assert 3 <= kept.size <= 20


def test_tokens_have_their_sources_where_siblings_repeat() -> None:
    step = Step(tree=TokenTree([5, 6, 6, 7], [-1, 0, 0, 2]), drafted_by=[0, 1, 1])
    assert step.owners([6, 7, 8]) == [0, 1] and step.owners([9]) == []
    assert Step().owners([6]) == []
