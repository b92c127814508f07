"""Weights out of files, one tensor at a time: the same as of a loaded model, or refused by name."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig

import draftproof as dp
from draftproof import native
from draftproof.runners import checkpoint, loading
from draftproof.runners.checkpoint import Checkpoint
from native_models import CONFIGS, model, tokens

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
HUNDRED = dp.SamplingParams(max_tokens=30, temperature=1.0, seed=5, logprobs=3)


def saved(made: PreTrainedModel, folder: Path, **options: Any) -> Path:
    copy.deepcopy(made).save_pretrained(folder, **options)
    return folder


def find(folder: Path, dtype: torch.dtype | None = None) -> Checkpoint | None:
    return checkpoint.find(str(folder), dtype=dtype)


def written(source: Any, **options: Any) -> Any:
    with dp.LLM(source, runner="native", **options) as llm:
        (done,) = llm.generate(tokens(1, 7), HUNDRED)
        return done.token_ids, done.logprobs


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_writes_what_the_loaded_model_writes(name: str, dtype: str, tmp_path: Path) -> None:
    folder = saved(model(name), tmp_path, max_shard_size="60KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    found = find(folder)
    assert found is not None and all(p.is_meta for p in found.model.parameters())
    given = {"dtype": dtype} if dtype == "int8" else {}
    assert written(folder, dtype=dtype) == written(model(name), **given)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("asked", ["bfloat16", "int8"])
def test_other_precisions_are_converted_as_transformers_does(
    stored: torch.dtype, asked: str, tmp_path: Path
) -> None:
    folder = saved(copy.deepcopy(model("qwen3")).to(stored), tmp_path)
    wanted = torch.bfloat16 if asked == "bfloat16" else None
    found = find(folder, wanted)
    assert found is not None and found.dtype == (wanted or stored) == found.model.dtype
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=wanted or "auto")
    given = {"dtype": "int8"} if asked == "int8" else {}
    assert written(folder, dtype=asked) == written(loaded, **given)


def test_a_draft_is_read_so_too(tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    with dp.LLM(folder, runner="native", speculate=dp.DraftModel(folder, quantize="int8")) as llm:
        assert llm.runner.model.device.type == "meta"
        (fast,) = llm.generate(tokens(1, 7), HUNDRED)
        llm.use(None)
        (plain,) = llm.generate(tokens(1, 7), HUNDRED)
    assert fast.token_ids == plain.token_ids and fast.stats.drafted


def test_generation_config_and_name_are_the_folder_s(tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.3}')
    with dp.LLM(folder, speculate=None) as llm:
        assert dp.SamplingParams.from_model(llm).temperature == 0.3
        assert repr(str(folder)) in repr(llm)
    (folder / "generation_config.json").unlink()
    with dp.LLM(folder, speculate=None) as llm:
        assert dp.SamplingParams.from_model(llm).temperature == 0


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, {"format": "pt"})


def configure(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


K = "model.layers.1.self_attn.k_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "NaN": (
        lambda at: change(at, lambda t: t[K].view(-1)[3:4].fill_(float("nan"))),
        "layer 1 self_attn.k_proj hold NaN or infinity",
    ),
    "infinity": (
        lambda at: change(at, lambda t: t["model.norm.weight"][:1].fill_(float("inf"))),
        "weights of norm hold NaN or infinity",
    ),
    "embeddings": (
        lambda at: change(at, lambda t: t[checkpoint.EMBEDDINGS][-1:].fill_(float("nan"))),
        "weights of embed_tokens hold NaN or infinity",
    ),
    "missing": (lambda at: change(at, lambda t: t.pop(K)), f"lacks 1 weights, {K} first"),
    "shape": (
        lambda at: change(at, lambda t: t.update({K: t[K][:-1].clone()})),
        rf"{K} in .*model.safetensors has the shape \[\d+, \d+\], and the configuration says",
    ),
    "lying config": (
        lambda at: configure(at, intermediate_size=64),
        r"mlp\.\w+\.weight in .* the configuration says \[.*64.*\]: one of them belongs to another",
    ),
    "cut short": (
        lambda at: (at / "model.safetensors").write_bytes(
            (at / "model.safetensors").read_bytes()[:-1000]
        ),
        r"model\.safetensors \([\d,]+ bytes\) cannot be read, .*cut short or damaged, fetch it",
    ),
    "empty": (lambda at: (at / "model.safetensors").write_bytes(b""), "cut short or damaged"),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_named(damage: str, dtype: str, tmp_path: Path) -> None:
    edit, said = DAMAGES[damage]
    folder = saved(model("llama"), tmp_path)
    edit(folder)
    with pytest.raises(ValueError, match=said) as caught:
        dp.LLM(folder, dtype=dtype, speculate=None)
    assert "\n" not in str(caught.value)


def test_on_torch_a_damaged_tensor_is_named_too(tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    DAMAGES["infinity"][0](folder)
    with pytest.raises(ValueError, match="logits that are not finite: model.norm.weight holds NaN"):
        dp.LLM(folder, runner="torch", speculate=None)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_on_torch_a_damaged_file_is_told_with_a_way_out(name: str, tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a file there is damaged, fetch or save the model again"):
        dp.LLM(folder, runner="torch", speculate=None)


@pytest.mark.parametrize(("dtype", "factor"), [("auto", 1), ("float32", 2)])
def test_what_does_not_fit_is_not_loaded(
    dtype: str, factor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(model("llama"), tmp_path)
    size = factor * (folder / "model.safetensors").stat().st_size
    for room in (size - 1, size + 1):
        monkeypatch.setattr(loading, "available_bytes", lambda device, room=room: room)
        if room > size:
            dp.LLM(folder, runner="torch", dtype=dtype, speculate=None).close()
            continue
        with pytest.raises(ValueError, match=r"GB on torch and .* free: use bfloat16 or int8"):
            dp.LLM(folder, runner="torch", dtype=dtype, speculate=None)


def test_a_shard_that_is_missing_or_cut(tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path, max_shard_size="60KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=f"{shard.name} .*cut short or damaged"):
        dp.LLM(folder, speculate=None)
    shard.unlink()
    with pytest.raises(ValueError, match=shard.name):
        dp.LLM(folder, speculate=None)


def other_names(at: Path) -> None:
    change(at, lambda t: t.update({f"base.{K}": t.pop(K)}))


LEFT: dict[str, Callable[[Path], None]] = {
    "other names": other_names,
    "quantised": lambda at: configure(at, quantization_config={"quant_method": "gptq"}),
    "own code": lambda at: configure(at, auto_map={"AutoModelForCausalLM": "code.Model"}),
    "another class": lambda at: configure(at, architectures=["LlamaForSequenceClassification"]),
    "no class": lambda at: configure(at, architectures=None),
    "tied and there": lambda at: configure(at, tie_word_embeddings=True),
    "pickled": lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_to_transformers(case: str, tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    assert find(folder) is not None
    LEFT[case](folder)
    assert find(folder) is None


def test_a_matrix_that_is_tied_and_there_twice_is_transformers_choice(tmp_path: Path) -> None:
    folder = saved(model("llama"), tmp_path)
    configure(folder, tie_word_embeddings=True)
    loaded = loading.load(folder, device=torch.device("cpu"))
    assert written(folder, dtype="bfloat16") == written(loaded)


def test_filled_modules_are_empty_again(tmp_path: Path) -> None:
    found = find(saved(model("llama"), tmp_path))
    assert found is not None
    ids = torch.tensor([[5, 6, 7]])
    for failing in (False, True):
        with found.filled(), torch.inference_mode():
            if not failing:
                out = found.model(ids).logits
                assert torch.equal(out, copy.deepcopy(model("llama"))(ids).logits)
            else:
                with pytest.raises(IndexError):
                    found.model(torch.tensor([[1 << 40]]))
        assert all(p.is_meta for p in found.model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in found.model.modules())


PEAK = """
import sys, torch
from pathlib import Path
from draftproof.runners import checkpoint, packing
from draftproof import native
from transformers import LlamaForCausalLM
def resident(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))
found = checkpoint.find(sys.argv[1], dtype=None)
before = resident("VmRSS")
packed = packing.Packed(found, sys.argv[2])
largest = max(p.numel() * p.element_size() for p in found.model.parameters())
print((resident("VmHWM") - before - largest) / packed.bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what was resident")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_the_weights_are_never_held_twice(precision: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 40_000, "hidden_size": 512, "intermediate_size": 2048}
    config = LlamaConfig(**sizes, num_hidden_layers=24, num_attention_heads=8)
    folder = saved(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, folder, precision], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1.15
