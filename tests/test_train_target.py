"""`scripts/train_target.py`, which makes the bundled target."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftproof import LLM
from draftproof.training import trainer

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "train_target.py"


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    found = importlib.util.spec_from_file_location("train_target", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "train_target", module)
    found.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_target_is_trained_from_sources(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the bundled one, but tiny; what was interrupted goes on."""
    for part in ("train", "held_out"):
        (tmp_path / "sources" / part).mkdir(parents=True)
        for number in range(4):
            text = f"def f{number}(x):\n    return x + {number}\n\n\n" * 30
            (tmp_path / "sources" / part / f"{number}.py").write_text(text)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    monkeypatch.setattr(train, "SHAPE", size | heads)
    monkeypatch.setattr(train, "STEP_TOKENS", train.LONG)
    stages: list[str] = []
    fit, steps = train.fit, []

    def counted(self: Any, batches: Any, honest: Any = trainer._Loop._step) -> Any:
        steps.append(self.folder.name)
        return honest(self, batches)

    monkeypatch.setattr(trainer._Loop, "_step", counted)

    def until_the_second(*given: Any) -> Any:
        stages.append(given[-1].name)
        if stages == ["target-512", "target-2048"]:
            raise KeyboardInterrupt
        return fit(*given)

    monkeypatch.setattr(train, "fit", until_the_second)
    with pytest.raises(KeyboardInterrupt):
        train.main(20, tmp_path, tmp_path / "out")
    weights = torch.load(tmp_path / "target-512" / "best.pt", weights_only=True)
    train.main(20, tmp_path, tmp_path / "out")
    assert stages == ["target-512", "target-2048"] * 2
    assert steps == ["target-512"] * 18 + ["target-2048"] * 2  # none of them twice
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())
    first, second = said["evaluations"]
    assert said["steps"] == 20 and first[-1]["loss"] < 8.9  # of 9.01, of one that knows nothing
    assert second[-1]["loss"] <= first[-1]["loss"]
    with LLM(tmp_path / "out", dtype="float32", speculate=None) as llm:
        assert llm.generate(["def f1"])[0].token_ids
    trained = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert not torch.equal(trained.float(), weights["model.model.norm.weight"])
    assert not list(tmp_path.glob("target-*/best.pt"))
