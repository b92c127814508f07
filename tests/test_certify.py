"""The certificate of identity: sound engines pass, and each of the planted defects is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
import tiny
from draftproof import certify as certificates
from draftproof import native
from draftproof.certify import Certificate, identity, law, plain, report
from draftproof.certify.identity import OTHER_LOGITS, Outcome
from draftproof.certify.plain import Bound, Reference
from draftproof.request import Request
from draftproof.sampling import History, SamplingParams, pick
from planted import (
    PROMPTS,
    assert_whole,
    certify,
    end_in_the_middle,
    failing_drafter,
    foreign_penalty,
    methods,
    not_rolled_back,
    off_rows,
    target,
    wrong_position,
    wrong_row,
)


def causes(found: Certificate) -> set[str]:
    return {finding.cause for _, _, finding in found.defects}


# --- sound ----------------------------------------------------------------------------------------


def test_a_sound_engine_is_identical() -> None:
    seen: list[tuple[str, float]] = []
    found = certify(tick=lambda what, share: seen.append((what, share)))
    assert found.code == certificates.IDENTICAL and not found.defects and not found.near_ties
    assert found.verdict.startswith("IDENTICAL: nothing differs over")
    for case in found.cases:
        assert set(case.outcomes) == set(certificates.SETTINGS)
        for outcome in case.outcomes.values():
            assert outcome.positions and outcome.accepted
            assert 0 < outcome.difference <= found.bound.value  # really another pass
    assert 0 < found.bound.value < 1e-3
    assert found.bound.blocks > 0 and (found.bound.rounding or 0.0) > 0
    coupled, rejection = found.cases
    assert len(rejection.laws) == len(law.SETTINGS) and not coupled.laws
    assert_whole(seen)


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_on_the_native_runner_not_a_bit_may_differ() -> None:
    model = tiny.model("llama", dtype=torch.bfloat16, head_dim=16)
    llm = dp.LLM(model, runner="native", speculate=None)
    made = {"ngram": lambda: dp.NGram(min_ngram=1), **methods()}
    found = certificates.certify(llm, made, PROMPTS[1:3], max_tokens=10, runs=20, contexts=1)
    assert found.code == certificates.IDENTICAL
    assert found.bound == Bound(0.0, 0.0, None, 0.0)
    assert all(case.whole.difference == 0.0 for case in found.cases)
    assert "no logit may differ" in report.bound(found)


def test_near_ties_are_counted_and_nothing_hides_behind_them() -> None:
    """A runner in bfloat16 rounds otherwise for one row and for many."""
    model = tiny.model("llama", vocab_size=4000, dtype=torch.bfloat16)
    made = {"draft": lambda: dp.DraftModel(model, 5, min_confidence=0.0)}
    prompts = [[7 * i + 3, *p] for i, p in enumerate(PROMPTS)]
    found = certificates.certify(
        dp.LLM(model, speculate=None), made, prompts, rules=["coupled"], max_tokens=24
    )
    assert found.code == certificates.NEAR_TIES and found.near_ties
    assert found.verdict.startswith(f"NEAR-TIES: {found.near_ties} tokens differ by rounding")
    # Each prompt is compared to its end, whatever came before: twice, alone and in the batch.
    outcome = found.cases[0].outcomes["temperature 0.7"]
    written = sum(each.max_tokens for each in found.settings["temperature 0.7"])
    assert outcome.near_ties and outcome.positions == 2 * written


def test_a_method_is_made_once_for_both_rules() -> None:
    """Besides the one for its law: a draft that is given by name is loaded each time."""
    made: list[dp.DraftModel] = []

    def make() -> dp.DraftModel:
        made.append(methods()["draft"]())
        return made[-1]

    options: dict[str, Any] = {"max_tokens": 4, "runs": 1, "contexts": 1}
    certificates.certify(dp.LLM(target(), speculate=None), {"draft": make}, PROMPTS[:1], **options)
    assert len(made) == 2


# --- planted defects ------------------------------------------------------------------------------

PLANTED = {
    not_rolled_back: "logits that verified",
    wrong_position: "logits that verified",
    foreign_penalty: "does not follow",
    wrong_row: "does not follow",
    end_in_the_middle: "wrote on",
    failing_drafter: "drafting stopped: RuntimeError: boom",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = certify(rules=["coupled"], max_tokens=9)
    assert found.code == certificates.DEFECT and found.verdict.startswith("DEFECT")
    assert any(PLANTED[plant] in cause for cause in causes(found))
    assert len(report.defects(found)) <= report.SHOWN
    json.dumps(report.as_dict(found, "tiny"), allow_nan=False)


def test_logits_that_differ_without_a_token_are_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant added to every logit changes no law and no pick, unless penalties scale it."""
    off_rows(monkeypatch, lambda rows: rows + 0.01)
    found = certify(rules=["coupled"])
    assert causes(found) == {OTHER_LOGITS}
    shifted = [one for _, setting, one in found.defects if setting != "penalties"]
    assert shifted and all(one.plain == one.other for one in shifted)


def test_what_was_measured_is_no_excuse_beyond_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(0)
    off_rows(monkeypatch, lambda rows: rows + torch.randn(rows.shape, generator=noise))
    llm = dp.LLM(target(), speculate=None)
    made = plain.references(llm, PROMPTS[:1], [SamplingParams(max_tokens=20)], lambda: None)
    bound = plain.calibrate(llm, made)
    largest = max(float(row.abs().max()) for row in made[0].rows)
    assert bound.blocks > 1
    assert bound.value == bound.cap == 16 * torch.finfo(torch.float32).eps * largest
    drafting = dp.LLM(llm, speculate=methods()["draft"]())
    found = identity.examine(drafting, made, bound).defects
    assert {finding.cause for finding in found} >= {OTHER_LOGITS}


# --- the borders of the sampling chain ------------------------------------------------------------

BORDERS = {  # two rows within rounding of each other, of which other tokens survive
    "top_k": (SamplingParams(1.0, top_k=2), (0.5, 0.2501, 0.2499), (0.5, 0.2499, 0.2501)),
    "top_p": (SamplingParams(1.0, top_p=0.8), (0.5, 0.3001, 0.1999), (0.5, 0.2999, 0.2001)),
    "min_p": (SamplingParams(1.0, min_p=0.5), (0.5, 0.2501, 0.2499), (0.5, 0.2501, 0.2501)),
}


@pytest.mark.parametrize("name", BORDERS)
def test_a_token_at_a_border_is_a_near_tie(name: str) -> None:
    params, *both = BORDERS[name]
    plain, row = (torch.tensor(shares).log() for shares in both)
    prompt = [0, 1]

    def request(seed: int) -> Request:
        return Request(0, prompt, params, seed=seed)

    def picked(row: Tensor, seed: int) -> int:
        return pick(row, params, History(prompt), (), request(seed).noise, len(prompt))

    seed = next(seed for seed in range(100) if picked(plain, seed) != picked(row, seed))
    ref = Reference(0, prompt, params, [picked(plain, seed)], "length", [plain])
    other = request(seed)
    other.resume([picked(row, seed)])
    for value, near_ties, defects in ((0.01, 1, 0), (1e-6, 0, 1)):
        outcome, bound = Outcome(), Bound(value, 0.0, None, 0.0)
        identity._compare_row(ref, 0, row, other, History(prompt), bound, outcome)
        assert (len(outcome.near_ties), len(outcome.defects)) == (near_ties, defects)


# --- its parts ------------------------------------------------------------------------------------


def test_a_difference_that_is_no_number_is_infinite() -> None:
    row = torch.tensor([1.0, -math.inf, 2.0])
    assert plain.difference(row, row.clone()) == 0.0
    assert plain.difference(row, torch.tensor([1.0, -math.inf, 2.5])) == 0.5
    for bad in (math.nan, math.inf, -math.inf):
        assert plain.difference(row, torch.tensor([1.0, -math.inf, bad])) == math.inf


def test_none_is_not_certified() -> None:
    with pytest.raises(ValueError, match="what everything is compared with"):
        certificates.certify(dp.LLM(target(), speculate=None), {"none": lambda: None}, PROMPTS)
