"""`draftproof export`: one sentence and exit code 2 for whatever is wrong, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Starcoder2Config

import exporting
import tiny
from draftproof import bundled
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.profiles import Part
from exporting import ROWS, SIZES, TOKENIZER, made, profile, saved

MENDER = str(bundled.folder("mender"))
REFUSED = {
    "T --for vllm": "what is exported is missing, or said twice",
    "T --draft D --heads H --for vllm": "what is exported is missing, or said twice",
    "T --draft D --for trt": "engine 'trt' is unknown: use vllm, sglang, llama.cpp, transformers",
    "none.json --for vllm": "cannot read the profile none.json",
    "plain.json --for vllm": "chose plain alone: there is no draft in it to export",
    "T --profile lookup.json --for vllm": "chose ngram alone: there is no draft",
    "plain.json --draft D --for vllm": "a profile says itself what drafts",
    "plain.json --profile plain.json --for vllm": "a profile is given twice",
    "T --draft OTHER --for vllm": "another vocabulary than the target (id ",
    "T --draft SMALL --for sglang": "another vocabulary than the target (300 tokens and",
    "T --draft D --for vllm --out FULL": "is not empty: give another --out",
    "T --draft D --for vllm --out FILE": "is not empty: give another --out",
    "T --draft D --for vllm --out my-eagle3": "vLLM takes the draft's method from such a path",
    "T --heads H --for sglang": "sglang 0.5.23 reads no Medusa heads",
    "T --draft D --for sglang --dtype int8": "--dtype is of a GGUF file",
    "T --draft D --for llama.cpp --dtype int3": "dtype 'int3' is unknown",
    "T --draft D --num-draft-tokens 0 --for vllm": "drafts of 0 tokens are none",
    "T --draft D --min-confidence 2 --for vllm": "min_confidence is 2.0",
    "T --heads H --num-draft-tokens 3 --for vllm": "are of a draft: drop them",
    "T --draft nowhere/at/all --for vllm": "nowhere/at/all",
    "T --draft RARE --for vllm": "is a Starcoder2ForCausalLM, which the engine has no class for",
    "T --heads EXIT --for vllm": "read a layer in the middle, which no other engine does",
    "MENDER --draft MENDER --for vllm": "is an encoder-decoder",
    "T --draft D --to vllm": "there is no option --to: write --for ENGINE",
    "T --draft D": "Missing option",
    "--model T --draft D --for vllm": "the model is the first argument: draftproof export MODEL",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return exporting.models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("words", REFUSED)
def test_refused_in_a_sentence(
    run: Any,
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.json").write_text(Path(profile(tmp_path, models["target"])).read_text())
    (tmp_path / "lookup.json").write_text(
        Path(profile(tmp_path, models["target"], Part("ngram"))).read_text()
    )
    stand_ins = {"T": models["target"], "D": models["tied"], "H": models["heads"], "MENDER": MENDER}
    if "OTHER" in words:
        vocabulary = json.loads(TOKENIZER.backend_tokenizer.to_str())
        tokens = vocabulary["model"]["vocab"]
        one, two = list(tokens)[500:502]
        tokens[one], tokens[two] = tokens[two], tokens[one]
        saved(tmp_path / "OTHER", made(ROWS))
        (tmp_path / "OTHER" / "tokenizer.json").write_text(json.dumps(vocabulary))
    if "SMALL" in words:
        saved(tmp_path / "SMALL", made(300), None)
    if "RARE" in words:
        rare = AutoModelForCausalLM.from_config(rare_config())
        saved(tmp_path / "RARE", rare)
    if "EXIT" in words:
        weights = torch.randn(1, 1, 48, 48)
        files.save("EXIT", Heads(weights, None, None, vocab_size=ROWS, target="t", exit=2))
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "x").touch()
    (tmp_path / "FILE").touch()
    before = sorted(tmp_path.iterdir())
    code, _, err = run("export", *[stand_ins.get(word, word) for word in words.split()])
    assert code == 2 and REFUSED[words] in " ".join(err.replace("│", " ").split()), err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before  # and nothing is left


def rare_config() -> Any:
    return Starcoder2Config(**{**tiny.COMMON, **SIZES, "vocab_size": ROWS, "pad_token_id": 0})
