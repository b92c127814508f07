"""Heads on disk: what is broken is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftproof import bundled
from draftproof.heads import files
from draftproof.proposers.medusa import Medusa
from fitted_heads import D, V, random, random_heads
from head_files import WRITERS, set_config


def broken(folder: Path, writer: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Heads with their tensors changed by `change`."""
    WRITERS[writer](folder, random_heads(), random(V, D, seed=8))
    file = folder / ("medusa_lm_head.pt" if writer == "original" else "model.safetensors")
    tensors = torch.load(file) if writer == "original" else load_file(file)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    (torch.save if writer == "original" else save_file)(tensors, file)


FIRST = {
    "ours": "blocks.1.layers.0.weight",
    "original": "1.0.linear.weight",
    "vllm": "blocks.1.layers.0.weight",
}
LAST = {"ours": "lm_heads.2.weight", "original": "2.1.weight", "vllm": "lm_heads.2.weight"}
FAULTS: dict[str, tuple[Callable[[dict[str, Tensor], str], Any], str]] = {
    "missing": (lambda tensors, name: tensors.pop(name), "{name} is missing"),
    "shape": (lambda tensors, name: tensors.update({name: random(7, 7)}), r"{name} is \(7, 7\)"),
    "whole numbers": (lambda t, name: t.update({name: t[name].long()}), "{name} is .* floats"),
    "NaN": (lambda tensors, name: tensors[name].view(-1)[3:4].fill_(torch.nan), "NaN or infinity"),
    "infinity": (lambda t, name: t[name].view(-1)[3:4].fill_(torch.inf), "NaN or infinity"),
    "more": (lambda tensors, name: tensors.update({f"x{name}": random(2)}), "x{name} is no part"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_faulty_tensors_are_refused_by_name(writer: str, fault: str, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    for name in (FIRST[writer], LAST[writer]):
        broken(tmp_path, writer, lambda tensors, name=name: change(tensors, name))
        with pytest.raises(ValueError, match=message.format(name=name)) as caught:
            files.load(tmp_path)
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("writer", WRITERS)
def test_all_projections_of_another_shape(writer: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if name in ("0.1.weight", "1.1.weight", "2.1.weight") or "lm_heads" in name:
                tensors[name] = random(V, D + 1)

    broken(tmp_path, writer, change)
    with pytest.raises(ValueError, match=r"outputs is \(3, 97, 49\)"):
        files.load(tmp_path)


@pytest.mark.parametrize(
    ("writer", "changes", "message"),
    [
        ("ours", {"heads": 4}, "says heads: 4, not 3"),
        ("ours", {"layers": 2}, "says layers: 2, not 1"),
        ("ours", {"hidden_size": 64}, "says hidden_size: 64, not 48"),
        ("ours", {"vocab_size": 99}, r"outputs is \(3, 97, 48\)"),
        ("ours", {"shared_head": True, "vocab_size": None}, "vocab_size"),
        ("ours", {"shared_head": True, "vocab_size": "many"}, "vocab_size"),
        ("ours", {"accuracies": [[0.5]]}, "accuracies are"),
        ("ours", {"accuracies": [[0.5], [0.5], [1.5]]}, "accuracies are"),
        ("ours", {"accuracies": "high"}, "accuracies are"),
        ("ours", {"tree": [[0], [0, 0, 0]]}, "add that"),
        ("ours", {"tree": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}, "there are 3 heads"),
        ("ours", {"tree": [[0], [-1]]}, "list of paths"),
        ("ours", {"tree": 7}, "list of paths"),
        ("original", {"medusa_num_heads": 5}, "says medusa_num_heads: 5, not 3"),
        ("original", {"medusa_num_heads": "five"}, "says medusa_num_heads: five"),
        ("original", {"medusa_num_layers": 2}, "says medusa_num_layers: 2, not 1"),
        ("vllm", {"num_heads": 5}, "says num_heads: 5, not 3"),
        ("vllm", {"num_hidden_layers": 2}, "says num_hidden_layers: 2, not 1"),
        ("vllm", {"truncated_vocab_size": 50}, "token_map"),
    ],
)
def test_a_config_that_disagrees(
    writer: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    WRITERS[writer](tmp_path, random_heads(), None)
    set_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        files.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_tree_of_thousands_of_nodes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    heads = random_heads()
    files.save(tmp_path, heads)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tree"] = [[0] * depth for depth in range(1, 1001)]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json cannot be read \(1,.* more than any heads"):
        files.load(tmp_path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no heads there.*hf download"):
        files.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no heads there"):
        files.load(tmp_path)
    with pytest.raises(ValueError, match="a model is there, and no heads"):
        files.load(bundled.folder("draft"))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        Medusa(tmp_path)
    files.save(tmp_path, random_heads())
    for text in ("{", "[1, 2]", "7", None):
        if text is None:
            (tmp_path / "config.json").unlink()
        else:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="config.json cannot be read"):
            files.load(tmp_path)
    for saved in (b"no tensors at all", [1, 2], {"0.0.linear.weight": "no tensor"}):
        if isinstance(saved, bytes):
            (tmp_path / "medusa_lm_head.pt").write_bytes(saved)
        else:
            torch.save(saved, tmp_path / "medusa_lm_head.pt")
        with pytest.raises(ValueError, match="medusa_lm_head.pt cannot be read"):
            files.load(tmp_path / "medusa_lm_head.pt")


@pytest.mark.parametrize("export", [files.export_original, files.export_vllm])
def test_a_shared_head_must_be_given_to_others(export: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lm_head="):
        export(tmp_path, random_heads(own=False))
    with pytest.raises(ValueError, match=r"lm_head is \(9, 48\)"):
        export(tmp_path, random_heads(own=False), random(9, D))


@pytest.mark.parametrize("heads", [4, None, [random(2, 2)]])
def test_what_is_no_place_of_heads(heads: Any) -> None:
    with pytest.raises(ValueError, match=f"no {type(heads).__name__}$"):
        Medusa(heads)
