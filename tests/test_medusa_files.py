"""Heads on disk: what is written is read, in our layout and in that of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftproof.heads import files
from draftproof.proposers.medusa import Medusa
from fitted_heads import D, K, V, random, random_heads
from head_files import (
    SHAPES,
    TENSORS,
    WRITERS,
    as_safetensors,
    in_two_files,
    logits_of,
    rename,
    set_config,
)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("layers", "bias", "own"), SHAPES)
def test_what_is_written_is_read(
    writer: str, layers: int, bias: bool, own: bool, tmp_path: Path
) -> None:
    heads, lm_head = random_heads(4, layers, bias, own), random(V, D, seed=8)
    WRITERS[writer](tmp_path / "new" / "folder", heads, lm_head)
    read = files.load(tmp_path / "new" / "folder")
    assert torch.equal(logits_of(read, lm_head), logits_of(heads, lm_head))
    assert (read.heads, read.layers, read.hidden_size, read.vocab_size) == (4, layers, D, V)
    assert (read.outputs is None) == (not own and writer != "original")


def test_our_layout_keeps_the_notes(tmp_path: Path) -> None:
    heads = random_heads()
    heads.target, heads.tree = "some/model", [(0,), (0, 1)]
    heads.accuracies = [[0.5, 0.25]] * K
    files.save(str(tmp_path), heads)
    read = files.load(str(tmp_path))
    assert (read.target, read.tree, read.accuracies) == ("some/model", heads.tree, heads.accuracies)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format"] == "draftproof-medusa" and config["shared_head"] is False
    assert Medusa(tmp_path).paths == heads.tree
    alone = files.load(tmp_path / "model.safetensors")
    assert alone.tree == heads.tree and torch.equal(alone.weights, read.weights)
    for name, known in (("foretoken-medusa", True), ("other", False)):
        (tmp_path / "config.json").write_text(json.dumps(config | {"format": name}))
        if known:  # the project's former name
            assert files.load(tmp_path).tree == heads.tree
        else:
            with pytest.raises(ValueError, match="config.json says format: 'other'"):
                files.load(tmp_path)


def test_the_original_names(tmp_path: Path) -> None:
    heads, lm_head = random_heads(2, 2, bias=False, own=False), random(V, D, seed=8)
    heads.target = "lmsys/vicuna-7b-v1.3"
    files.export_original(tmp_path, heads, lm_head)
    tensors = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
    assert sorted(tensors) == sorted(
        [f"{k}.{i}.linear.{kind}" for k in (0, 1) for i in (0, 1) for kind in ("weight", "bias")]
        + ["0.2.weight", "1.2.weight"]
    )
    assert torch.equal(tensors["1.0.linear.weight"], heads.weights[1, 0])
    assert not tensors["1.0.linear.bias"].any() and torch.equal(tensors["1.2.weight"], lm_head)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["medusa_num_heads"] == config["medusa_num_layers"] == 2
    assert files.load(tmp_path).target == "lmsys/vicuna-7b-v1.3"


def test_the_names_of_vllm(tmp_path: Path) -> None:
    files.export_vllm(tmp_path, random_heads(2, 1, bias=True, own=True))
    assert sorted(load_file(tmp_path / "model.safetensors")) == sorted(
        [f"blocks.{k}.layers.0.{kind}" for k in (0, 1) for kind in ("weight", "bias")]
        + ["lm_heads.0.weight", "lm_heads.1.weight"]
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "medusa" and config["medusa_fc_bias"] is True
    files.export_vllm(tmp_path, random_heads(2, 1, own=False), random(V, D))
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["original_lm_head"] is True


OTHER_COUNTS = {"num_heads": None, "num_hidden_layers": None, "medusa_num_heads": 4}
MODEL = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 32000}


# Ways in which published files differ from what we write.
VARIANTS: dict[str, Callable[[Path], Any]] = {
    "pt": lambda folder: (folder / "config.json").unlink(),
    "pt with a model": lambda folder: (folder / "config.json").write_text(json.dumps(MODEL)),
    "pt, too few heads said": lambda folder: set_config(folder, medusa_num_heads=2),
    "pt, prefix": lambda folder: rename(folder / "medusa_lm_head.pt", lambda n: f"medusa_head.{n}"),
    "pt, safetensors": as_safetensors,
    "vllm, prefix": lambda folder: rename(folder / TENSORS, lambda n: f"medusa_heads.{n}"),
    "vllm, other counts": lambda folder: set_config(folder, **OTHER_COUNTS, model_type=None),
    "vllm, two files": in_two_files,
    "vllm, first of equal heads": lambda folder: rename(
        folder / TENSORS, lambda n: n.replace("lm_head.", "lm_heads.0.")
    ),
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_what_others_write_is_read(kind: str, tmp_path: Path) -> None:
    heads, lm_head = random_heads(4, own="equal" not in kind), random(V, D, seed=8)
    export = files.export_original if kind.startswith("pt") else files.export_vllm
    export(tmp_path, heads, lm_head)
    VARIANTS[kind](tmp_path)
    alone = tmp_path / "medusa_lm_head.pt"
    for path in [tmp_path, alone] if alone.exists() else [tmp_path]:
        read = files.load(path)
        assert torch.equal(logits_of(read, lm_head), logits_of(heads, lm_head))
