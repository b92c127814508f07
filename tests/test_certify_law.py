"""The certificate where the rejection rule samples: its logits, and its law.

Sound laws pass; false ones, drafters that fail and logits that are not plain decoding's are found.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof import certify as certificates
from draftproof import sampling
from draftproof.certify import Certificate, law, plain, report, sampled
from draftproof.certify.identity import OTHER_LOGITS
from draftproof.certify.plain import Bound, Reference
from draftproof.sampling import SamplingParams
from planted import (
    PROMPTS,
    assert_whole,
    end_in_the_middle,
    failing_drafter,
    lying_law,
    not_rolled_back,
    shared_noise,
    target,
    undrawn_siblings,
    wrong_bonus,
    wrong_residual,
)

IDS = PROMPTS[1]
TESTS = 28  # of a certificate of seven methods


def tried(
    speculate: Any, runs: int, setting: str = "top_k=4", model: Any = None, off: float = 0.0
) -> law.Test:
    options: dict[str, Any] = {"max_batch": law.BATCH, "prefix_cache": True, "rule": "rejection"}
    with dp.LLM(model or target(), speculate=speculate, **options) as llm:
        return law.test(llm, 0, IDS, setting, range(runs), off)


@cache
def similar() -> PreTrainedModel:
    """So near to the target that three tokens in a row are often accepted."""
    return tiny.relative(target(), 0.05)


def drafting() -> dp.DraftModel:
    return dp.DraftModel(similar(), 3, min_confidence=0.0)


def rejected(methods: dict[str, Any], **options: Any) -> Certificate:
    """A small certificate of the rejection rule alone."""
    options = {"max_tokens": 4, "runs": 10, "contexts": 1, **options}
    llm = dp.LLM(target(), speculate=None)
    return certificates.certify(llm, methods, PROMPTS[:2], rules=["rejection"], **options)


def bushy() -> dp.SpecInfer:
    return dp.SpecInfer([similar()], (1, 1, 3))  # its default, as far as the test looks


# --- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "setting", "runs"),
    [
        (drafting, "top_k=4", 1000),
        (drafting, "penalties, top_k=4", 400),
        (bushy, "top_k=4", 1000),
        (dp.Lookahead, "top_k=4", 200),
    ],
)
def test_a_sound_law_passes(made: Callable[[], Any], setting: str, runs: int) -> None:
    test = tried(made(), runs, setting)
    assert test.runs == runs and test.bins > 5 and test.p > 1e-3 and not test.impossible
    assert test.drafted > 3 * runs and test.idle is None and not test.fails(TESTS)
    assert made is dp.Lookahead or test.accepted > runs / 2


@pytest.mark.parametrize(
    ("plant", "made", "runs"),
    [
        (wrong_residual, drafting, 400),
        (shared_noise, drafting, 400),
        (lying_law, drafting, 1500),
        (undrawn_siblings, bushy, 400),  # at the third depth alone
    ],
)
def test_a_false_law_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    made: Callable[[], Any],
    runs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert tried(made(), runs).fails(TESTS)


def test_a_certificate_tells_of_a_false_law(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_residual(monkeypatch)
    monkeypatch.setattr(law, "SETTINGS", {"top_k=4": law.SETTINGS["top_k=4"]})
    found = rejected({"draft": drafting}, runs=600)
    assert found.code == certificates.DEFECT and "failed tests of law" in found.verdict
    assert found.failed_laws and not found.defects  # no token is impossible
    assert "do not follow the target's law" in report.defects(found)[0]


def test_a_drafter_that_fails_is_a_failed_test(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []
    failing_drafter(monkeypatch)
    found = rejected({"draft": drafting}, tick=lambda what, share: seen.append((what, share)))
    causes = [test.cause for _, test in found.failed_laws]
    assert len(causes) == len(law.SETTINGS) and len(set(causes)) == 1
    assert causes[0].startswith("drafting stopped: RuntimeError: boom (planted.py:")
    assert found.code == certificates.DEFECT
    assert_whole(seen)
    json.dumps(report.as_dict(found, "tiny"), allow_nan=False)
    assert report.defects(found)[-1].endswith(f": {causes[0]}")


def test_a_test_without_drafts_says_so() -> None:
    found = rejected({"ngram": lambda: dp.NGram(min_ngram=20, max_ngram=20)})
    assert [test.idle for test in found.cases[0].laws] == ["nothing was drafted"] * 2
    assert report.idle(found)[1:] == [
        "ngram, rejection: 2 of 2 tests of law not exercised: nothing was drafted"
    ]
    assert list(report.table(found).columns[-2].cells) == ["none"]
    assert found.code == certificates.NOT_EXERCISED and found.tests == 0


# --- rounding -------------------------------------------------------------------------------------


def test_rounding_is_no_false_law() -> None:
    """In bfloat16 the fourth and the fifth candidate change places from pass to pass."""
    impossible = 0
    for seed in range(2):
        model = tiny.model("llama", seed, torch.bfloat16, vocab_size=1000, initializer_range=0.1)
        llm = dp.LLM(model, speculate=None)
        made = plain.references(llm, [IDS], [SamplingParams(max_tokens=20)], lambda: None)
        bound = plain.calibrate(llm, made, certificates._twin(llm))
        near = tiny.relative(model, 0.1)
        test = tried(dp.DraftModel(near, 3), 150, model=model, off=bound.value)
        assert not test.fails(TESTS) and test.drafted
        impossible += tried(dp.DraftModel(near, 3), 150, model=model).impossible
    assert impossible  # which is what the band is for


def test_an_impossible_token_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_bonus(monkeypatch)
    model = tiny.model("llama", dtype=torch.bfloat16, initializer_range=0.1)
    test = tried(None, 20, model=model, off=0.01)
    assert test.impossible and test.fails(TESTS)


def test_the_band_is_what_rounding_may_exchange() -> None:
    params = SamplingParams(1.0, top_k=3)
    row = torch.tensor([5.0, 3.0, 2.95, 2.9, 2.7, -math.inf])
    kept = sampling.law(row, params, sampling.History([0]), ())
    assert law.band(row, kept, params, 0.0) == set()
    assert law.band(row, kept, params, 0.02) == set()
    assert law.band(row, kept, params, 0.03) == {2, 3}
    assert law.band(row, kept, params, 0.06) == {1, 2, 3}
    stretched = SamplingParams(1.0, top_k=3, repetition_penalty=0.5)
    assert law.band(row, kept, stretched, 0.03) == {1, 2, 3}
    found = law.Law({(7, law.NEAR): 1.0}, {(7,): {2, 3}})
    assert found.outcome([7, 3, 9]) == (7, law.NEAR) and found.outcome([7, 1, 9]) == (7, 1, 9)


# --- the logits -----------------------------------------------------------------------------------


def test_logits_are_compared_where_tokens_differ_by_right(monkeypatch: pytest.MonkeyPatch) -> None:
    not_rolled_back(monkeypatch)
    found = rejected({"draft": drafting}, max_tokens=16)
    for setting in ("temperature 0.7", "penalties"):
        assert {one.cause for one in found.cases[0].outcomes[setting].defects} == {OTHER_LOGITS}


def examined(params: SamplingParams) -> set[str]:
    llm = dp.LLM(target(), speculate=None)
    engine = dp.LLM(llm, speculate=drafting(), rule="rejection")
    made = [Reference(i, ids, params, [], None, []) for i, ids in enumerate(PROMPTS)]
    outcome = sampled.examine(llm, engine, made, Bound(1e-4, 0.0, None, 0.0))
    return {finding.cause for finding in outcome.defects}


def test_a_token_must_be_possible_under_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(1.0, top_k=4, max_tokens=8, seed=1)
    assert examined(params) == set()
    wrong_bonus(monkeypatch)
    assert examined(params) == {"the token is impossible under the logits that verified it"}


def test_a_draw_ends_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(1.0, stop_token_ids=range(0, 97, 3), max_tokens=20, seed=1)
    assert examined(params) == set()
    end_in_the_middle(monkeypatch)
    assert "it wrote on behind a token that ends it" in examined(params)


def test_long_prompts_are_replayed_in_slices() -> None:
    llm = dp.LLM(target(), speculate=None)
    llm.engine.scheduler.prompt_budget = 4
    (ref,) = plain.references(llm, PROMPTS[2:3], [SamplingParams(max_tokens=6)], lambda: None)
    rows = sampled.replay(llm, ref.prompt, ref.tokens)
    assert all(torch.equal(*both) for both in zip(rows, ref.rows, strict=True))


# --- its parts ------------------------------------------------------------------------------------


def test_the_exact_law_is_what_plain_decoding_follows() -> None:
    llm, params = (
        dp.LLM(target(), rule="rejection", speculate=None),
        law.SETTINGS["penalties, top_k=4"],
    )
    want = law.exact(llm, IDS, params, 0.0).shares
    assert math.isclose(sum(want.values()), 1.0) and len(want) == 4**3
    (triple, share) = max(want.items(), key=lambda pair: pair[1])
    history, p = sampling.History(IDS), 1.0
    for i, token in enumerate(triple):
        with torch.no_grad():
            row = target()(torch.tensor([[*IDS, *triple[:i]]])).logits[0, -1]
        p *= float(sampling.law(row, params, history, triple[:i])[token])
    assert math.isclose(p, share, rel_tol=1e-4)


def test_chi_square_pools_what_is_rare() -> None:
    want = {(0,): 0.5, (1,): 0.494, (2,): 0.003, (3,): 0.003}
    assert law.chi_square(want, Counter({(0,): 500, (1,): 494, (2,): 6}), 1000) == (3, 1.0)
    assert law.chi_square(want, Counter({(0,): 50, (1,): 50}), 100)[0] == 2
    bins, p = law.chi_square({(0,): 0.5, (1,): 0.5}, Counter({(0,): 60, (1,): 40}), 100)
    assert bins == 2 and math.isclose(p, math.erfc(math.sqrt(2.0)), rel_tol=1e-9)  # z = 2
    assert law.chi_square({(0,): 1.0}, Counter({(0,): 9}), 9) == (1, 1.0)
