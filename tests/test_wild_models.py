"""Models whose logits hang on the last bits: a wrong pass is refused, and rounding is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
from draftproof.runners import altering, crossing, probe, wide
from encoders import FAMILIES, prompts

NEW = 6
REFUSED = "gives other logits"


CASES: list[Any] = [
    ("LongT5", 12, 5.0, torch.float32),
    ("Switch", 8, 2.0, torch.float32),
    ("NLLB-MoE", 8, 2.0, torch.float64),
]


def wild(family: str, layers: int, scale: float, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = FAMILIES[family](layers).to(dtype).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight *= scale
    return made


def without_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wide, "SMALL", 0)
    patch.setattr(wide, "available_bytes", lambda device: 0)


def refused(made: PreTrainedModel) -> bool:
    try:
        dp.LLM(made, speculate=None).close()
    except ValueError as error:
        assert REFUSED in str(error)
        return True
    return False


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_is_no_reason_to_refuse(case: Any) -> None:
    """One that would be, if nothing were compared in float64; it stays as it was."""
    with pytest.MonkeyPatch.context() as patch:
        without_a_copy(patch)
        all_ = (made for seed in range(20) if refused(made := wild(*case, seed)))
        if (made := next(all_, None)) is None:
            pytest.skip("no such model rounds that far on this processor")
    before = {name: (each.dtype, each.clone()) for name, each in made.state_dict().items()}
    with dp.LLM(made, speculate="ngram") as llm:
        done = llm.generate(prompts(3), dp.SamplingParams(max_tokens=NEW))
    assert all(one.token_ids and one.error is None for one in done)
    after = made.state_dict()
    assert all(
        torch.equal(weight, after[name]) and dtype == after[name].dtype
        for name, (dtype, weight) in before.items()
    )


def backwards(table: Any, seg: Any, part: Any, like: Tensor) -> Tensor:
    return BIAS(table, seg, part, like).flip(1)


BIAS = crossing._bias


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_pass_is_found_all_the_same(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "_bias", backwards)
    monkeypatch.setattr(altering, "placed", lambda decoder, positions, call: call())
    assert refused(wild(*case, 0))


def test_what_is_not_finite_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wild(*CASES[0], 0)
    monkeypatch.setattr(probe, "differs", lambda *given: float("nan"))
    monkeypatch.setattr(wide, "of", lambda model: pytest.fail("a copy was made"))
    with pytest.raises(ValueError, match="off by nan"):
        dp.LLM(made)
