"""A checkpoint of four bits is input from strangers: what is wrong with it, one sentence says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import draftproof as dp
import gguf_files
import quantised_files
from draftproof import native
from quantised_files import Layout

LAYOUTS = {
    "awq": Layout("awq", 32),
    "gptq": Layout("gptq", 32, act_order=True),
    "compressed-tensors": Layout("compressed-tensors", 32),
}
PATH = "model.layers.1.mlp.down_proj"
Held = dict[str, Any]


@pytest.fixture(scope="module", params=LAYOUTS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all is well, of each method."""
    folder = tmp_path_factory.mktemp(request.param)
    model = gguf_files.model("llama", dtype=torch.bfloat16)
    quantised_files.write(folder, model, LAYOUTS[request.param])
    return folder


def refused(whole: Path, tmp_path: Path, change: Callable[[Held, Held], object]) -> str:
    """The sentence for a copy whose tensors and `quantization_config` were changed."""
    folder = shutil.copytree(whole, tmp_path / "copy")
    held: Held = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    change(held, config["quantization_config"])
    held = {name: tensor.contiguous() for name, tensor in held.items()}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as told:
        dp.LLM(folder, speculate=None)
    text = str(told.value)
    assert "\n" not in text and len(text) < 400
    return text


def method(whole: Path) -> str:
    config = json.loads((whole / "config.json").read_text())
    return str(config["quantization_config"]["quant_method"])


def main(held: Held) -> str:
    return next(
        each for each in held if each.startswith(PATH) and each.endswith(("qweight", "packed"))
    )


def scales(held: Held) -> str:
    return next(each for each in held if each.startswith(PATH) and "scale" in each)


def put(name: Callable[[Held], str], how: Callable[[Any], Any]) -> Callable[[Held, Held], object]:
    return lambda held, _: held.update({name(held): how(held[name(held)])})


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor[0, 0] = float("nan")
    return tensor


TENSORS: dict[str, tuple[Callable[[Held, Held], object], str]] = {
    "no words": (lambda held, _: held.pop(main(held)), f"lacks {PATH}"),
    "no scales": (lambda held, _: held.pop(scales(held)), f"lacks {PATH}.*scale"),
    "fewer words": (put(main, lambda t: t[:-1]), f"{PATH}.* has the shape .*another model"),
    "words of floats": (put(main, lambda t: t.float()), f"{PATH}.* in F32.*I32"),
    "words of 8 bits": (put(main, lambda t: t.to(torch.int8)), f"{PATH}.* in I8"),
    "more scales": (put(scales, lambda t: torch.cat([t, t])), f"{PATH}.* has the shape"),
    "whole scales": (put(scales, lambda t: t.int()), f"{PATH}.* in I32"),
    "no embeddings": (lambda held, _: held.pop("model.embed_tokens.weight"), "lacks model.embed"),
    "no norm": (lambda held, _: held.pop("model.norm.weight"), "lacks model.norm.weight"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_not_as_they_should_be(whole: Path, tmp_path: Path, case: str) -> None:
    change, words = TENSORS[case]
    assert re.search(words, refused(whole, tmp_path, change))


@pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
def test_a_scale_that_is_no_number(whole: Path, tmp_path: Path) -> None:
    text = refused(whole, tmp_path, put(scales, with_nan))
    assert "layer 1 mlp.down_proj hold NaN" in text


OTHERS: dict[str, tuple[str, Held, str]] = {
    "8 bits": ("awq gptq", {"bits": 8}, "weights of 8 bits, and only 4"),
    "no bits": ("awq gptq", {"bits": None}, "weights of None bits"),
    "groups of 0": ("awq gptq", {"group_size": 0}, "groups of 0 inputs"),
    "groups of words": ("awq gptq", {"group_size": "many"}, "groups of many inputs"),
    "groups of too many": ("awq gptq", {"group_size": 10**40}, "inputs, which cannot be"),
    "other groups": ("awq gptq", {"group_size": 16}, "has the shape"),
    "gemv": ("awq", {"version": "gemv"}, "AWQ's layout gemv, and only gemm"),
    "no zeros": ("awq", {"zero_point": False}, "without zeros"),
    "marlin": ("gptq", {"checkpoint_format": "marlin"}, "GPTQ's layout marlin"),
    "dynamic": ("gptq", {"dynamic": {"+:down": {"bits": 8}}}, "different bits"),
    "64 bits": ("gptq", {"pack_dtype": "int64"}, "words of int64"),
    "floats": ("compressed-tensors", {"format": "float-quantized"}, "the format float-quantized"),
    "no groups": ("compressed-tensors", {"config_groups": None}, "only pack-quantized is read"),
    "strange groups": ("compressed-tensors", {"config_groups": {"a": 3}}, "without weights"),
    "cache": ("compressed-tensors", {"kv_cache_scheme": {"num_bits": 8}}, "a kv_cache_scheme"),
    "not yet": ("compressed-tensors", {"quantization_status": "frozen"}, "that are frozen"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_layouts_that_are_not_read(whole: Path, tmp_path: Path, case: str) -> None:
    methods, said, words = OTHERS[case]
    if method(whole) not in methods.split():
        pytest.skip(f"of {methods}")
    assert words in refused(whole, tmp_path, lambda _, config: config.update(said))


def of_group(held: Held, config: Held) -> Held:
    group: Held = config["config_groups"]["group_0"]
    return group


PACKED: dict[str, tuple[Callable[[Held, Held], object], str]] = {
    "8 bits": (
        lambda held, config: of_group(held, config)["weights"].update(num_bits=8),
        "weights of 8 bits",
    ),
    "floats": (
        lambda held, config: of_group(held, config)["weights"].update(type="float"),
        "weights of type float",
    ),
    "one scale": (
        lambda held, config: of_group(held, config)["weights"].update(strategy="tensor"),
        "scales by tensor",
    ),
    "activations": (
        lambda held, config: of_group(held, config).update(input_activations={"num_bits": 8}),
        "activations that are quantised too",
    ),
    "another shape": (
        lambda held, _: held.update({f"{PATH}.weight_shape": torch.tensor([9, 9])}),
        f"{PATH} has a weight_shape of [9, 9]",
    ),
}


@pytest.mark.parametrize("case", PACKED)
def test_what_compressed_tensors_says_of_weights(whole: Path, tmp_path: Path, case: str) -> None:
    if method(whole) != "compressed-tensors":
        pytest.skip("of compressed-tensors")
    change, words = PACKED[case]
    assert words in refused(whole, tmp_path, change)


@pytest.mark.parametrize("wrong", [-1, 3, 1 << 30])
def test_an_input_of_a_group_that_is_not_there(whole: Path, tmp_path: Path, wrong: int) -> None:
    if method(whole) != "gptq":
        pytest.skip("of GPTQ")

    def change(held: Held, _: Held) -> None:
        held[f"{PATH}.g_idx"][5] = wrong

    assert f"{PATH} has a g_idx with group" in refused(whole, tmp_path, change)
