"""GGUF files of architectures that run on torch: the model's own logits, or a refusal by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
import fuzzed_files
import gguf_files
import gguf_others
from draftproof.gguf import others
from draftproof.gguf.configuration import REASONS
from draftproof.runners import gguf_checkpoint

IDS = (torch.arange(40).unsqueeze(0) * 37 + 5) % 99  # windows and long factors bind
CPU = torch.device("cpu")
GREEDY = dp.SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("name", gguf_others.CONFIGS)
def test_logits_are_the_models_own(tmp_path: Path, name: str) -> None:
    model = gguf_others.model(name)
    model.set_attn_implementation("eager")
    file = gguf_others.write(tmp_path / "m.gguf", model)
    loaded = gguf_checkpoint.load(file, dtype=torch.float32, device=CPU)
    loaded.set_attn_implementation("eager")
    with torch.inference_mode():
        off = (loaded(IDS).logits - model(IDS).logits).abs().max()
    assert off < 1e-4, off
    assert loaded.config.tie_word_embeddings == model.config.tie_word_embeddings


def test_every_architecture_is_compared() -> None:
    assert {name.split()[0] for name in gguf_others.CONFIGS} == {*others.MAKE}


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3", "gpt2"])
def test_a_file_writes_what_its_model_writes(tmp_path: Path, name: str, caplog: Any) -> None:
    model = gguf_others.model(name)
    wanted = dp.LLM(model, speculate=None).generate([IDS[0].tolist()], GREEDY)[0].token_ids
    file = gguf_others.write(tmp_path / "m.gguf", model)
    with dp.LLM(file, dtype="float32", speculate=dp.NGram()) as llm:
        assert llm.generate([IDS[0].tolist()], GREEDY)[0].token_ids == wanted
    assert "m.gguf: weights become float32 numbers on torch" in caplog.text


def test_blocks_become_numbers(tmp_path: Path) -> None:
    model = gguf_others.model("phi3")
    file = gguf_others.write(tmp_path / "m.gguf", model, "Q8_0")
    loaded = gguf_checkpoint.load(file, dtype=None, device=CPU)
    assert loaded.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert (loaded.state_dict()[name].float() - tensor).abs().max() < 0.02, name


def test_no_text_is_longer_than_a_window_that_the_file_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "STARCODER2_WINDOW", 50)
    file = gguf_others.write(tmp_path / "m.gguf", gguf_others.model("starcoder2"))
    with dp.LLM(file, dtype="float32", speculate=None) as llm:
        assert llm.max_length == 50


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("gemma2", {"attention__scale": 0.5}, "says gemma2.attention.scale, which is not read"),
        ("gpt2", {"expert_count": 8}, "mixture of experts"),
        ("phi3", {"attention__sliding_window": None}, "does not say how far its tokens see"),
        ("phi3", {"rope__scaling__factor": 2.0, "rope__scaling__type": 3}, "is of type int"),
        ("gemma", {"rope__dimension_count": 8}, "only a part is rotated"),
        ("gemma3", {"attention__head_count": 3}, "its fields make no model, .*not a multiple"),
        ("phi3 long", {"rope__dimension_count": 8}, "its fields make no model, .*must have length"),
        ("phi3 partly", {"block_count": 1}, "which no phi3 model has"),
        ("starcoder2", {"attention__layer_norm_epsilon": None}, "layer_norm_epsilon: it is not"),
        ("gemma3", {"attention__causal": False}, "its tokens see what follows them"),
        ("gemma3", {"attention__sliding_window_pattern": 0}, "sliding_window_pattern, which is"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping is 0.0"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ("gemma", {"rope__freq_base": float("nan")}, "rope.freq_base is nan"),
        ("gemma3", {"rope__freq_base_swa": 0.0}, "rope.freq_base_swa is 0.0"),
        ("gemma3", {"rope__scaling__factor": float("nan")}, "rope.scaling.factor is nan"),
        ("gemma2", {"attention__layer_norm_rms_epsilon": -1.0}, "rms_epsilon is -1.0"),
        ("gpt2", {"attention__layer_norm_epsilon": float("inf")}, "norm_epsilon is inf"),
        ("phi3 long", {"rope__scaling__attn_factor": -1.0}, "attn_factor is -1.0"),
        ("phi3", {"rope__scaling__attn_factor": 2.0}, "scales its attention, and lacks"),
        ("phi3 partly", {"rope__dimension_count": 7}, "7 numbers of 16 cannot be rotated"),
        ("phi3 partly", {"rope__dimension_count": 64}, "64 numbers of 16 cannot be rotated"),
        ("gpt2", {"attention__key_length": 8}, "4 heads of 8 do not make 64"),
        ("gpt2", {"attention__head_count": 3}, "3 heads of 21 do not make 64"),
    ],
)
def test_what_is_not_read_is_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], says: str
) -> None:
    fields = {key.replace("__", "."): value for key, value in fields.items()}
    file = gguf_others.write(tmp_path / "m.gguf", gguf_others.model(name), **fields)
    with pytest.raises(ValueError, match=says) as error:
        dp.LLM(file, speculate=None)
    assert "\n" not in str(error.value) and str(file) in str(error.value)


def test_half_of_the_rotary_factors_is_refused(tmp_path: Path) -> None:
    file = gguf_others.write(tmp_path / "m.gguf", gguf_others.model("phi3 long"))
    file.write_bytes(file.read_bytes().replace(b"rope_factors_long", b"rope_factors_lone"))
    with pytest.raises(ValueError, match="rope_factors_long.weight is missing"):
        dp.LLM(file, speculate=None)


@pytest.mark.parametrize("name", ["mamba", "bloom", "other"])
def test_others_are_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    file = gguf_files.write(tmp_path / "m.gguf", gguf_files.model("llama"))
    file.write_bytes(file.read_bytes().replace(b"llama", name.encode()))
    reason = REASONS.get(name, "is not one of those that were compared")
    with pytest.raises(ValueError, match=reason) as error:
        dp.LLM(file, speculate=None)
    assert "give the hub id" in str(error.value)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = gguf_others.model("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] = float("nan")
    file = gguf_others.write(tmp_path / "m.gguf", model)
    with pytest.raises(
        ValueError, match=r"h\.1\.mlp\.c_fc\.weight has weights that are not finite"
    ):
        dp.LLM(file, speculate=None)


@pytest.mark.parametrize("name", ["gemma3", "phi3 long", "gpt2"])
def test_mutated_headers_crash_nothing(tmp_path: Path, name: str) -> None:
    whole = gguf_others.write(tmp_path / "m.gguf", gguf_others.model(name))
    assert 20 < fuzzed_files.fuzz(whole, tmp_path, 60, 0) <= 60
