"""Drafts whose vocabulary is not the target's, and rules from outside that see the target's ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
from beside import SLOW, V, draft, drafted, guarded, models_of, run, some, target
from draftproof.request import Request
from draftproof.tree import TokenTree
from tiny import other_size


class Says:
    """Proposes every id that only some models have, and what the target likes."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        return [TokenTree([r.tokens[-1], V - 1, 5, V - 3, 6], [-1, 0, 1, 0, 2]) for r in requests]


def less(by: int = 8) -> PreTrainedModel:
    made = other_size(V - by, draft())
    made.config.max_position_embeddings = 2600
    return made


SMALLER: dict[str, Callable[[], Any]] = {
    "draft": lambda: dp.DraftModel(less(), min_confidence=0.0),
    "shaped": lambda: dp.DraftModel(less(), tree=[(0,), (1,), (0, 0), (1, 0)]),
    "specinfer": lambda: dp.SpecInfer([less(), less(4)], expansion=(2, 2, 1)),
    "staged, look-up": lambda: dp.Staged(less(), dp.NGram(min_ngram=1), min_confidence=0.0),
    "staged, suffix": lambda: dp.Staged(
        less(), dp.SuffixAutomaton(min_match=1), min_confidence=0.0
    ),
    "staged, any ids": lambda: dp.Staged(less(), Says(), min_confidence=0.0),
    "staged, wider": lambda: dp.Staged(less(), dp.DraftModel(draft(), 3), min_confidence=0.0),
    "staged, narrower": lambda: dp.Staged(draft(), dp.DraftModel(less(), 3), min_confidence=0.0),
    "staged twice": lambda: dp.Staged(
        less(4), dp.Staged(less(), Says(), 4, min_confidence=0.0), min_confidence=0.0
    ),
    "hybrid": lambda: [dp.NGram(min_ngram=1), dp.DraftModel(less(), min_confidence=0.0)],
}
SMALL_PROMPTS = [[5, 6, V - 1, 7], [5, V - 2], *(some(seed, 12) for seed in range(2)), [9, 10] * 8]


def sampled(**options: Any) -> dp.SamplingParams:
    given = {"temperature": 1.1, "max_tokens": 14, "ignore_eos": True, "seed": 5, **options}
    return dp.SamplingParams(**given)


@cache
def plain(rule: str, temperature: float) -> list[list[int]]:
    with dp.LLM(target(), rule=rule, speculate=None) as llm:
        outs = llm.generate(SMALL_PROMPTS, sampled(temperature=temperature))
        return [out.token_ids for out in outs]


@pytest.mark.parametrize("rule", ["coupled", pytest.param("rejection", marks=SLOW)])
@pytest.mark.parametrize("name", SMALLER)
def test_no_id_reaches_a_model_that_has_no_row_for_it(name: str, rule: str) -> None:
    with drafted(SMALLER[name](), rule=rule) as llm:
        seen: list[int] = []
        for runner in models_of(llm.engine.proposer):
            guarded(runner, seen)
        outs = llm.generate(SMALL_PROMPTS, sampled())
    assert seen and sum(out.stats.drafted for out in outs) > 0
    said = [warning for out in outs for warning in out.warnings]
    assert all("has no row for token id" in warning for warning in said), said
    assert all(len(out.warnings) <= 2 for out in outs)
    if rule == "coupled":
        assert [out.token_ids for out in outs] == plain("coupled", 1.1)


def alternates(ids: Tensor, row: Tensor) -> Tensor:
    """No token of the last three again, and every id has its place."""
    assert len(row) == V and int(ids.max()) < V
    row = row.clone()
    row[ids[-3:]] = -torch.inf
    return row


def forces(ids: Tensor, row: Tensor) -> Tensor:
    """Every fifth token is one that a smaller draft does not have."""
    if len(ids) % 5:
        return alternates(ids, row)
    row = torch.full_like(row, -torch.inf)
    row[V - 1] = 0.0
    return row


@pytest.mark.parametrize(
    ("process", "temperature"),
    [
        (alternates, 0.9),
        pytest.param(alternates, 0.0, marks=SLOW),
        pytest.param(forces, 0.9, marks=SLOW),
        (forces, 0.0),
    ],
)
@pytest.mark.parametrize("name", SMALLER)
def test_a_rule_from_outside_sees_the_targets_ids(
    name: str, temperature: float, process: Any
) -> None:
    texts = []
    for proposer in (None, SMALLER[name]()):
        with drafted(proposer) as llm:
            requests = [
                llm.submit(prompt, sampled(temperature=temperature))[0]
                for prompt in SMALL_PROMPTS[2:]
            ]
            for request in requests:
                request.history.process = process
            texts.append(run(llm, requests))
    assert texts[0] == texts[1]
    if process is alternates:
        assert sum(request.stats.drafted for request in requests) > 0
    said = [warning for request in requests for warning in request.warnings]
    assert all("has no row for token id" in warning for warning in said), said


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_stage_is_asked_about_its_own_text(rule: str) -> None:
    """The target as its own draft, drafted for: whatever the rule bars, all is accepted."""
    made = dp.Staged(target(), dp.NGram(min_ngram=1), min_confidence=0.0, branch=1)
    with drafted(made, rule=rule) as llm:
        requests = [llm.submit(prompt, sampled())[0] for prompt in SMALL_PROMPTS[2:]]
        for request in requests:
            request.history.process = alternates
        run(llm, requests)
    assert all(r.stats.accepted == r.stats.drafted > 0 for r in requests)
