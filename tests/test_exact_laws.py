"""The law of what is random, counted against all sequences by the model's own passes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import draftproof as dp
from cases import PROMPTS
from chi_square import chi_square_p
from draftproof.tree import TokenTree
from laws import RUNS, WARPED, check_law, exact_law, small, vars_of
from speculating import TOKENS, engine, generated, params_of


def draft_of_small(branch: int = 1, length: int = 3) -> dp.DraftModel:
    return dp.DraftModel(small(1), length, min_confidence=0.0, branch=branch)


@pytest.mark.parametrize("branch", [1, 2])
def test_law_of_the_rejection_rule(branch: int) -> None:
    check_law("rejection", draft_of_small(branch), RUNS, max_tokens=4)


def test_law_of_the_rejection_rule_with_warped_laws() -> None:
    check_law("rejection", draft_of_small(2), RUNS, max_tokens=4, **WARPED)


def test_law_of_the_rejection_rule_without_laws() -> None:
    proposer = [dp.NGram(min_ngram=1), draft_of_small(2)]
    check_law("rejection", proposer, RUNS)


def test_law_of_coupled_sampling() -> None:
    check_law("coupled", draft_of_small(2), RUNS)


BREAKING = {
    "chain": lambda model: dp.DraftModel(model, 2, min_confidence=0.0, branch=1),
    "shaped": lambda model: dp.DraftModel(model, tree=[(0,), (0, 0)]),
    "staged": lambda model: dp.Staged(model, Silent(), 2, min_confidence=0.0, branch=1),
}


class Silent:
    """Drafts nothing, so that every pass of a draft that it drafts for writes one token."""

    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Any]) -> list[TokenTree]:
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]


@pytest.mark.parametrize(
    "kind", ["chain", pytest.param("shaped", marks=pytest.mark.slow), "staged"]
)
def test_law_when_the_draft_breaks_after_some_tokens(kind: str) -> None:
    """What was drawn may not be dropped because of what it is (non-anticipation)."""
    breaking = copy.deepcopy(small(1))

    def explode(module: Any, args: Any, kwargs: Any) -> None:
        if armed and kwargs["input_ids"][0, -1].item() == 3:
            raise RuntimeError("out of luck")

    armed: list[bool] = []
    breaking.register_forward_pre_hook(explode, with_kwargs=True)
    proposer = BREAKING[kind](breaking)
    params = dp.SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
    seeds = [dp.SamplingParams(**{**vars_of(params), "seed": seed}) for seed in range(600)]
    with dp.LLM(small(0), speculate=proposer, rule="rejection", max_batch=1) as llm:
        armed.append(True)
        outs = llm.generate([[3, 1]] * len(seeds), seeds)
    assert any(out.warnings for out in outs) and not all(out.warnings for out in outs)
    counts = Counter(tuple(out.token_ids[:2]) for out in outs)
    assert chi_square_p(counts, exact_law(small(0), params, [3, 1], 2)) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED, {"temperature": 2.0, "min_p": 0.2}])
@pytest.mark.parametrize("confidence", [0.0, 0.5])
@pytest.mark.parametrize("branch", [1, 2, 4])
def test_law_of_the_rejection_rule_at_length(
    branch: int, confidence: float, options: dict[str, Any]
) -> None:
    proposer = dp.DraftModel(small(1), 3, min_confidence=confidence, branch=branch)
    check_law("rejection", proposer, 12000, max_tokens=5, length=4, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WARPED])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("proposer", [None, "ngram", "both"])
def test_laws_of_other_methods_at_length(
    rule: str, proposer: str | None, options: dict[str, Any]
) -> None:
    made = [dp.NGram(min_ngram=1), draft_of_small(3)] if proposer == "both" else proposer
    if made == "ngram":
        made = dp.NGram(min_ngram=1)
    check_law(rule, made, 12000, max_tokens=4, length=4, **options)


def test_rejection_at_temperature_0_is_greedy() -> None:
    params = dp.SamplingParams(max_tokens=TOKENS)
    llm = engine("branches", "llama", torch.float32, rule="rejection", max_batch=4)
    with llm:
        outs = llm.generate(PROMPTS, params)
    assert [out.token_ids for out in outs] == generated("llama", torch.float32)


def test_rejection_is_reproducible_from_its_seed() -> None:
    params = params_of("one")
    runs = []
    for max_batch in (1, 4):
        with engine("draft", "llama", rule="rejection", max_batch=max_batch) as llm:
            runs.append([out.token_ids for out in llm.generate(PROMPTS, params)])
            runs.append([out.token_ids for out in llm.generate(PROMPTS, params)])
    assert all(run == runs[0] for run in runs)
