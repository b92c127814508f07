"""What lies in `--out` before a training begins: resumed, refused, or replaced when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof.cli import training
from draftproof.heads import files
from training_folders import QUICK, TWO


def test_a_finished_model_is_replaced_only_when_asked(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    words += ["--out", str(tmp_path)]
    assert train(*words).code == 0
    weights = files.load(tmp_path).weights
    for more in ([], ["--resume"], ["--seed", "3"]):
        refused = train(*words, *more)
        assert refused.code == 2 and refused.out == ""
        assert "holds a finished model: add --overwrite" in refused.err
        assert refused.err.count("error:") == 1 and "Traceback" not in refused.err
        assert torch.equal(files.load(tmp_path).weights, weights)
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert train(*words, "--seed", "3", "--overwrite").code == 130
    assert torch.equal(files.load(tmp_path).weights, weights)  # until there is another
    monkeypatch.undo()
    refused = train(*words, "--seed", "3")
    assert refused.code == 2 and "is unfinished: add --resume" in refused.err
    assert train(*words, "--seed", "3", "--resume").code == 0
    assert not torch.equal(files.load(tmp_path).weights, weights)


def test_overwriting_begins_anew(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK]
    words += ["--out", str(tmp_path)]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert train(*words, *TWO).code == 130
    monkeypatch.undo()
    assert train(*words, "--num-heads", "3", "--overwrite").code == 0
    assert files.load(tmp_path).heads == 3


def test_the_model_itself_is_never_replaced(train: Any, folder: Path) -> None:
    before = (folder / "T" / "model.safetensors").read_bytes()
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO, "--overwrite"]
    refused = train(*words, "--out", str(folder / "T"))
    assert refused.code == 2 and "is the model itself" in refused.err
    assert (folder / "T" / "model.safetensors").read_bytes() == before


def test_prompts_without_answers_are_enough_where_the_target_answers(
    train: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.jsonl").write_text(
        "".join(f'{{"prompt": "def f{i}(name):"}}\n' for i in range(4))
    )
    words = [str(folder / "T"), "--data", str(tmp_path / "prompts.jsonl"), *QUICK, *TWO]
    words += ["--out", str(tmp_path / "out")]
    refused = train(*words)
    assert refused.code == 2 and "prompts alone are for --self-distill" in refused.err
    result = train(*words, "--self-distill", "--limit", "200")
    assert result.code == 0, result.err
    assert files.load(tmp_path / "out").heads == 2
