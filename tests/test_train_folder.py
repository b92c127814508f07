"""What lies in `--out` before a training begins: resumed, refused, or replaced when asked."""

from __future__ import annotations

import json
import shutil
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
    gone_on = train(*words, "--seed", "3", "--resume")
    assert gone_on.code == 0 and "there is no checkpoint" not in gone_on.err
    assert not torch.equal(files.load(tmp_path).weights, weights)


def test_overwriting_begins_anew(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK]
    words += ["--out", str(tmp_path)]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    first = train(*words, *TWO, "--resume")  # as in a script that is run until it is done
    assert first.code == 130 and f"there is no checkpoint in {tmp_path}" in first.err
    monkeypatch.undo()
    anew = train(*words, "--num-heads", "3", "--overwrite")
    assert anew.code == 0 and "there is no checkpoint" not in anew.err
    assert files.load(tmp_path).heads == 3


def test_the_model_itself_is_never_replaced(train: Any, folder: Path) -> None:
    before = (folder / "T" / "model.safetensors").read_bytes()
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO, "--overwrite"]
    refused = train(*words, "--out", str(folder / "T"))
    assert refused.code == 2 and "is the model itself" in refused.err
    assert (folder / "T" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--out", "FILE"), "text.py is a file; give another folder as --out"),
        (("--seed", "-1"), "Invalid value for '--seed'"),
    ],
)
def test_what_cannot_be_is_told_at_once(
    train: Any, folder: Path, tmp_path: Path, more: tuple[str, str], said: str
) -> None:
    file = str(folder / "text.py")
    words = [str(folder / "T"), "--data", file, *QUICK, "--out", str(tmp_path)]
    refused = train(*words, *(file if word == "FILE" else word for word in more))
    assert refused.code == 2 and said in refused.err and "reading" not in refused.err


@pytest.mark.parametrize("names", [["checkpoint.old"], ["checkpoint.old", "checkpoint"]])
def test_a_checkpoint_that_was_killed_between_two_names_is_not_lost(
    names: list[str], train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path)]
    words += [*QUICK, *TWO]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert train(*words).code == 130
    written = tmp_path / "written"
    (tmp_path / "checkpoint").rename(written)
    for name in names:
        shutil.copytree(written, tmp_path / name)
    assert "is unfinished: add --resume" in train(*words).err
    assert train(*words, "--resume").code == 130
    said = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert said["step"] == 2 and not (tmp_path / "checkpoint.old").exists()
    (tmp_path / "checkpoint" / "about.json").write_text("{")
    refused = train(*words, "--resume")
    assert refused.code == 2 and "is damaged: about.json cannot be read; begin anew" in refused.err


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--out", "/proc/no"), "cannot write results to /proc/no: No such file"),
        (("--out", "FILE/no"), "text.py is a file; give another folder as --out"),
        (("--start", "GGUF"), "m.gguf is a GGUF file, which is not trained on"),
        (("--dtype", "int4"), "--dtype int4 is not trained on: drop it"),
    ],
)
def test_what_would_be_in_vain_is_refused_before_the_model_is_read(
    train: Any, folder: Path, tmp_path: Path, more: tuple[str, str], said: str
) -> None:
    file = str(folder / "text.py")
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00")
    words = [str(folder / "T"), "--data", file, *QUICK, "--out", str(tmp_path)]
    places = {"FILE": file, "GGUF": str(tmp_path / "m.gguf")}
    for name, place in places.items():
        more = more[0], more[1].replace(name, place)
    refused = train(*words, *more)
    assert refused.code == 2 and said in refused.err and "reading" not in refused.err
