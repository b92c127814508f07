"""Certificates of encoder-decoders with wild random weights, which make much of rounding.

What the model itself loses to another precision is no defect of the engine; a defect is found all
the same, since nothing that the engine computes widens the bound past that.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof import certify as certificates
from draftproof.certify import plain
from draftproof.certify.certificate import DEFECT, IDENTICAL
from draftproof.runners import crossing
from draftproof.runners.encoder_decoder import EncoderDecoder
from encoders import model, prompts
from marking import all_but_some_slow

DTYPES = [torch.float64, torch.float32]


def loaded(family: str, dtype: torch.dtype) -> dp.LLM:
    return dp.LLM(copy.deepcopy(model(family)).to(dtype), speculate=None)


def certified(llm: dp.LLM) -> certificates.Certificate:
    methods = {"ngram": lambda: dp.NGram(min_ngram=1)}
    given: dict[str, Any] = {"rules": ["coupled"], "max_tokens": 10, "runs": 1, "contexts": 1}
    return certificates.certify(llm, methods, prompts(3), **given)


def largest(found: certificates.Certificate) -> float:
    return max(run.difference for case in found.cases for run in case.outcomes.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "family", all_but_some_slow(["T5", "UMT5", "LongT5", "Pegasus", "Marian"], "T5", "Marian")
)
def test_rounding_of_the_model_itself_is_no_defect(family: str, dtype: torch.dtype) -> None:
    found = certified(loaded(family, dtype))
    assert found.code == IDENTICAL, (found.verdict, found.bound, largest(found))
    assert found.bound.own is not None and found.bound.value < 0.1


def test_there_is_a_model_whose_rounding_the_dtype_alone_does_not_bound() -> None:
    """Else the test above would pass without what the model itself loses."""
    llm = loaded("T5", torch.float64)
    params = [dp.SamplingParams(temperature=0, max_tokens=9)] * 3
    refs = plain.references(llm, prompts(3), params, lambda: None)
    logit = max(float(row.abs().max()) for ref in refs for row in ref.rows)
    assert largest(certified(llm)) > plain.CAP * torch.finfo(torch.float64).eps * logit


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_another_distance_is_found(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """In trees alone, by a hundredth: what a plain pass has is right."""
    inner = crossing._bias

    def off(table: Any, seg: Any, part: Any, like: Any) -> Any:
        bias = inner(table, seg, part, like)
        return bias if seg.tree is None else bias * (1 + 0.01 * (len(seg.tree) > 1))

    llm = loaded("T5", dtype)
    monkeypatch.setattr(crossing, "_bias", off)
    assert certified(llm).code == DEFECT


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_defect_of_every_pass_widens_no_bound(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Passes over several rows read a little less across; the plain run differs from the model."""
    inner = EncoderDecoder._step

    def dimmed(self: Any, work: Any, segments: Any) -> Any:
        step: Any = inner(self, work, segments)
        rows = sum(seg.end - seg.begin for seg in segments)
        step.across = [
            {
                layer: (keys, values * (1 - 1e-3 * (rows > 1)))
                for layer, (keys, values) in one.items()
            }
            for one in step.across
        ]
        return step

    llm = loaded("T5", dtype)  # before it is broken: the probe would refuse it
    monkeypatch.setattr(EncoderDecoder, "_step", dimmed)
    found = certified(llm)
    assert found.code == DEFECT, found.verdict
