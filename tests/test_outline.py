"""A model that is known by its configuration alone: what is told of it is what its modules have."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import draftproof as dp
import gguf_files
from draftproof import native
from draftproof.runners import checkpoint, gguf_checkpoint, packing, probe, reference
from draftproof.runners.checkpoint import Checkpoint
from draftproof.runners.outline import Outline
from draftproof.runners.weights import LoadedWeights
from native_models import CONFIGS, V, model, tokens

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
NAMES = [name for name in CONFIGS if name not in ("mistral", "linear rope")]
TEN = dp.SamplingParams(max_tokens=10, temperature=1.0, seed=3, logprobs=2)


def saved(name: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """Some say their rotary scaling with a field that it has not: transformers only warns."""
    made = copy.deepcopy(model(name))
    made.to(dtype).save_pretrained(folder)
    found = checkpoint.find(str(folder), dtype=None)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_its_modules_say(name: str, tmp_path: Path) -> None:
    outline = saved(name, tmp_path).model
    assert isinstance(outline, Outline)
    theirs = LlamaForCausalLM if "llama" in name or "rope" in name else object
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(whole, theirs)
    shapes = {each: list(tensor.shape) for each, tensor in whole.state_dict().items()}
    assert outline.shapes == shapes
    assert torch.equal(outline.inv_freq, whole.model.rotary_emb.inv_freq)
    assert outline.attention_scaling == whole.model.rotary_emb.attention_scaling
    assert packing.refusal(outline) is None is packing.refusal(whole)
    assert (outline.dtype, outline.name_or_path) == (whole.dtype, whole.name_or_path)
    assert "modules_of_it" not in vars(outline)
    assert type(outline.modules_of_it) is type(whole)  # made now
    assert all(each.is_meta for each in outline.parameters())
    assert outline.num_parameters() == whole.num_parameters()


@pytest.mark.parametrize("lies", [True, False])
def test_its_generation_config(lies: bool, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    if not lies:
        (tmp_path / "generation_config.json").unlink()
    found = checkpoint.find(str(tmp_path), dtype=None)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    if not lies:  # as before anything is read
        whole = AutoModelForCausalLM.from_config(whole.config)
    assert found is not None
    assert found.model.generation_config.to_dict() == whole.generation_config.to_dict()
    assert found.model.modules_of_it.generation_config is found.model.generation_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_plain_torch_computes_what_transformers_does(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    found, ids = saved(name, tmp_path, dtype), tokens(1, 12)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        theirs = whole(input_ids=torch.tensor([ids])).logits[0].float()
    off = (reference.logits(found, ids) - theirs).norm() / theirs.norm()
    assert theirs.shape == (12, V)
    assert off < (1e-5 if dtype == torch.float32 else 0.05)
    loaded = reference.logits(LoadedWeights(whole), ids)
    assert torch.equal(loaded, reference.logits(found, ids))


def test_a_file_s_rotary_factors(tmp_path: Path) -> None:
    made = gguf_files.model("llama")
    file = gguf_files.write(tmp_path / "m.gguf", made)
    found = gguf_checkpoint.find(file, dtype=torch.float32)
    assert isinstance(found.model, Outline)
    ids = [3, 5, 7, 11]
    with torch.inference_mode():
        theirs = made(input_ids=torch.tensor([ids])).logits[0]
    assert torch.allclose(reference.logits(found, ids), theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.model.modules_of_it.model.rotary_emb.inv_freq, found.rotary()[0])


def written(folder: Path) -> Any:
    with dp.LLM(folder, runner="native", speculate=None) as llm:
        (done,) = llm.generate(tokens(1, 7), TEN)
        return done.token_ids, done.logprobs, "modules_of_it" in vars(llm.runner.model)


def test_in_doubt_transformers_own_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("llama", tmp_path)
    *text, made = written(tmp_path)
    assert not made
    monkeypatch.setattr(probe.reference, "logits", lambda weights, ids: torch.zeros(len(ids), V))
    *again, made = written(tmp_path)
    assert made and text == again


def test_weights_that_are_packed_wrongly_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("llama", tmp_path)
    pack = packing.pack
    monkeypatch.setattr(packing, "pack", lambda at, kind, layer, w: pack(at, kind, layer, w * 1.5))
    with pytest.raises(ValueError, match="logits come out .* off those of transformers"):
        dp.LLM(tmp_path, runner="native", speculate=None)


def test_what_is_not_known_of_it_is_compared_with_transformers(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"of_somebody": 1}))
    found = checkpoint.find(str(tmp_path), dtype=None)
    assert found is not None and not isinstance(found.model, Outline)
    with dp.LLM(tmp_path, speculate=None) as llm:
        assert type(llm.runner.model) is LlamaForCausalLM


def test_copies_and_questions_make_no_modules(tmp_path: Path) -> None:
    outline = saved("qwen3", tmp_path).model
    assert not hasattr(outline, "__len__")
    twin = copy.copy(outline)
    assert twin.config is outline.config and "modules_of_it" not in vars(outline)
