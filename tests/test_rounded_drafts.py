"""A draft that its precision hurts is told, not refused: it changes no text. A wrong one is."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch

import draftproof as dp
from draftproof import native
from draftproof.runners import packing
from native_models import model, tokens

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
SIXTEEN = dp.SamplingParams(max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which one weight of 32 is so large that four bits leave nothing of the others."""
    folder = tmp_path_factory.mktemp("uneven") / "m"
    made = copy.deepcopy(model("llama"))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("_proj.weight"):
                weight[:, ::32] *= 20
    made.save_pretrained(folder)
    return folder


def drafted(draft: object, quantize: str | None = "int4") -> list[list[int]]:
    """A text of the native runner, with drafts and without."""
    method = dp.DraftModel(draft, 3, min_confidence=0.0, quantize=quantize)
    with dp.LLM(model("llama"), runner="native", speculate=method) as llm:
        (text,) = llm.generate(tokens(1, 5), SIXTEEN)
        assert text.stats.drafted
        (plain,) = dp.LLM(llm, speculate=None).generate(tokens(1, 5), SIXTEEN)
    return [list(text.token_ids), list(plain.token_ids)]


def test_what_a_draft_loses_in_four_bits_is_told(
    uneven: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        text, plain = drafted(str(uneven))
    assert text == plain
    (said,) = (each for each in caplog.messages if "off its own" in each)
    assert "the draft's logits in int4" in said and "quantize='int8', or drop it" in said
    with pytest.raises(ValueError, match="in int4 come out .*; give dtype='int8', or drop it"):
        dp.LLM(str(uneven), dtype="int4", speculate=None)


def test_a_draft_that_is_packed_wrongly_is_refused(
    uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = dp.LLM(model("llama"), runner="native", speculate=None)
    pack = packing.pack
    monkeypatch.setattr(packing, "pack", lambda at, kind, layer, w: pack(at, kind, layer, w * 1.5))
    method = dp.DraftModel(str(uneven), quantize="int4")
    with pytest.raises(ValueError, match="in int4 come out .*; drop quantize and use runner="):
        dp.LLM(target, speculate=method)


def test_what_was_told_is_compared_again(
    uneven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that were kept are mapped without a comparison, whatever they are loaded for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    method = dp.DraftModel(str(uneven), quantize="int4")
    with dp.LLM(str(uneven), cache_weights=True, speculate=method):
        pass
    with pytest.raises(ValueError, match="in int4 come out"):
        dp.LLM(str(uneven), dtype="int4", cache_weights=True, speculate=None)
