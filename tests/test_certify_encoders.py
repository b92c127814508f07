"""`draftproof certify` on encoder-decoders: it certifies, and it finds what is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
from draftproof import certify as certificates
from draftproof.certify import script
from draftproof.certify.certificate import DEFECT, IDENTICAL
from draftproof.runners.encoder_decoder import EncoderDecoder
from encoder_folders import prompts as file_of
from encoder_folders import saved
from encoders import _bart, _t5, prompts

METHODS = {"ngram": lambda: dp.NGram(min_ngram=1)}


def made(family: str, **rules: Any) -> PreTrainedModel:
    """With smaller weights than elsewhere: those make much of rounding, which is bounded here."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "T5":
            model = _t5("T5", 2, initializer_factor=1.5)
        else:
            model = _bart("Bart", 2, init_std=0.2)
    for name, value in rules.items():
        setattr(model.generation_config, name, value)
    return model.double().eval()


def certified(model: PreTrainedModel, **more: Any) -> certificates.Certificate:
    llm = dp.LLM(model, speculate=None)
    given: dict[str, Any] = {"max_tokens": 10, "runs": 200, "contexts": 1, **more}
    return certificates.certify(llm, METHODS, prompts(3), **given)


@pytest.mark.parametrize(
    ("family", "rules"),
    [("T5", {"num_beams": 4}), ("BART", {"no_repeat_ngram_size": 3, "forced_bos_token_id": 7})],
)
def test_what_is_sound_is_identical(family: str, rules: dict[str, Any]) -> None:
    """Beams are told of in every text, and are no complaint; rules are the plain run's too."""
    found = certified(made(family, **rules))
    assert found.code == IDENTICAL, found.verdict
    assert all(case.whole.accepted and case.whole.together for case in found.cases)
    assert len(found.counted) == 2 and all(test.reads for test in found.counted)


def test_a_law_that_a_rule_of_the_config_bends_is_the_targets() -> None:
    """Half of the tokens may not be written: their shares are others'."""
    found = certified(made("T5", suppress_tokens=[*range(3, 30)]), rules=["rejection"])
    assert found.code == IDENTICAL, found.verdict
    assert all(not test.impossible and test.cause is None for test in found.counted)


def test_inputs_that_are_mixed_up_in_a_batch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("T5")
    llm = dp.LLM(model, speculate=None)
    inner = EncoderDecoder._step

    def mixed(self: Any, work: Any, segments: Any) -> Any:
        step: Any = inner(self, work, segments)
        step.across = step.across[::-1]
        return step

    monkeypatch.setattr(EncoderDecoder, "_step", mixed)
    found = certificates.certify(
        llm, METHODS, prompts(3), rules=["coupled"], max_tokens=10, runs=1, contexts=1
    )
    assert found.code == DEFECT, found.verdict
    text = script.text(found, "folder", {}, {"ngram": "'ngram'"})
    assert text is not None and "identity.examine(" in text
    compile(text, "script", "exec")


def test_a_failed_law_is_shown_again_with_what_the_encoder_read() -> None:
    found = certified(made("T5"), rules=["rejection"], runs=60)
    (case,) = found.cases
    case.laws[:] = [certificates.law.Test(**{**vars(case.laws[0]), "cause": "planted"})]
    text = script.text(found, "folder", {}, {"ngram": "'ngram'"})
    assert text is not None and f"reads={case.laws[0].reads!r}" in text
    assert "prefix_cache=False" in text
    compile(text, "script", "exec")


def test_in_a_shell(run: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "BART")
    given = ["certify", str(folder), "--prompts", str(file_of(tmp_path)), "--out", str(tmp_path)]
    given += ["--dtype", "float64", "--max-tokens", "4", "--runs", "4", "--rule", "coupled"]
    code, out, err = run(*given, "--method", "all")
    assert "early-exit" in out and "ngram" in out and "left out" not in err, err
    assert code in (0, 1, 4), err
    shallow = saved(tmp_path / "shallow", "BART", 1)
    code, out, err = run("certify", str(shallow), *given[2:], "--method", "all")
    assert "early-exit is left out" in err and "early-exit" not in out and code in (0, 1, 4), err
    code, _, err = run(*given[:-4], "--max-tokens", "96")
    assert code == 2 and "do not fit in max_length 96" in err, err
