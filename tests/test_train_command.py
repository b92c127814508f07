"""`draftproof train medusa` as a user runs it: what is written, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

import draftproof as dp
import tiny
from draftproof import bundled, cli
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.training.jobs import material, medusa, setup
from training_folders import QUICK, TEXT, TWO


def test_heads_are_written_with_card_and_figures(train: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    data = ["--data", str(folder / "text.py")]
    found = train(str(folder / "T"), *data, "--out", str(out), *QUICK, *TWO, "--capture")
    assert found.code == 0, found.err
    assert "memory: about" in found.err and "hidden states:" in found.err
    predicted, served = map(float, re.findall(r"tokens/step (\d+\.\d+)", found.out))
    assert predicted == pytest.approx(served, rel=0.03)
    said = json.loads((out / "provenance.json").read_text())
    assert said["report"]["served"] == pytest.approx(served, abs=0.006)
    assert said["report"]["ended"] == "steps" and said["report"]["steps"] == 6
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: draftproof") and "served tokens/step" in card
    assert {file.name for file in out.iterdir()} >= {"model.safetensors", "config.json"}
    assert not (out / "checkpoint").exists() and not (out / "best.pt").exists()
    assert not list(out.glob("states-*")) and (out / "training.png").exists()
    heads = files.load(out)
    assert heads.heads == 2 and heads.tree and heads.accuracies and heads.outputs is None
    with (
        dp.LLM(folder / "T", speculate=None) as plain,
        dp.LLM(folder / "T", speculate=dp.Medusa(out)) as fast,
    ):
        prompt = "def main"
        (slow,), (quick,) = (llm.generate([prompt]) for llm in (plain, fast))
        assert slow.token_ids == quick.token_ids and quick.stats.drafted


def test_exports_are_what_others_read(train: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = train(*words, *TWO, "--export", "original", "--export", "vllm")
    assert found.code == 0, found.err
    ours = files.load(tmp_path)
    for name in ("original", "vllm"):
        other = files.load(tmp_path / name)
        torch.testing.assert_close(other.weights, ours.weights)
    weight = AutoModelForCausalLM.from_pretrained(folder / "T").get_output_embeddings().weight
    torch.testing.assert_close(files.load(tmp_path / "original").outputs[1], weight)


def test_the_target_writes_what_is_learnt(train: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = train(*words, *TWO, "--self-distill", "--limit", "500")
    assert found.code == 0, found.err
    assert not (tmp_path / "written.json").exists()


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "is unfinished: add --resume"),
        (["--length", "3", "--resume"], "length 3 must be from 7 to the target's 128"),
        (["--start", "nowhere", "--resume"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_the_target_writes(
    words: list[str],
    says: str,
    train: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*given: Any, **named: Any) -> None:
        raise AssertionError("the data was read")

    (tmp_path / "checkpoint").mkdir()
    monkeypatch.setattr(material.sources, "documents", read)
    data = ["--data", str(folder / "text.py"), "--out", str(tmp_path), "--self-distill"]
    found = train(str(folder / "T"), *data, *words)
    assert found.code == 2 and says in found.err


@pytest.mark.parametrize("what", ["original", "vllm"])
def test_a_disk_that_is_full_at_the_end_is_one_sentence(
    what: str, train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setitem(medusa.EXPORTS, what, full)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = train(*words, *TWO, "--export", what)
    assert found.code == 2 and f"{tmp_path / what}, where" in found.err and "make room" in found.err
    assert "Traceback" not in found.err


def test_heads_of_a_layer_are_no_start(train: Any, folder: Path, tmp_path: Path) -> None:
    files.save(tmp_path / "exit", Heads(torch.zeros(1, 1, 48, 48), vocab_size=8192, exit=1))
    words = ["--data", str(folder / "text.py"), "--out", str(tmp_path / "out"), *QUICK]
    found = train(str(folder / "T"), *words, "--start", str(tmp_path / "exit"))
    assert found.code == 2 and "reads layer 1: start from Medusa heads" in found.err


@pytest.mark.parametrize("more", [[], ["--full", "--rate", "0.05"]], ids=["adapters", "full"])
def test_jointly_the_target_is_written_too(
    more: list[str], train: Any, folder: Path, tmp_path: Path
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = train(*words, *TWO, "--joint", *more, "--export", "original")
    assert found.code == 0, found.err
    before = AutoModelForCausalLM.from_pretrained(folder / "T").state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "target").state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert files.load(tmp_path).target == str(tmp_path / "target")
    assert f"base_model: {tmp_path / 'target'}" in (tmp_path / "README.md").read_text()
    ours = files.load(tmp_path / "original").outputs
    assert ours is not None and torch.equal(ours[0], after["lm_head.weight"])
    assert bool(more) != torch.equal(ours[0], before["lm_head.weight"])  # adapters leave it alone


@pytest.mark.slow  # imports everything four times
def test_two_processes_train_what_one_does(folder: Path, tmp_path: Path) -> None:
    """Started as torchrun and accelerate do: the same rows a step, so nearly the same weights."""
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    program, environment = [sys.executable, "-m"], os.environ | {"OMP_NUM_THREADS": "1"}
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    weights, outputs = {}, {}
    for name, before, more in (
        ("one", [], []),
        ("two", launch, []),
        ("other rows", [], ["--seed", "1"]),
    ):
        command = [*program, *before, "draftproof", "train", "medusa", *words, *more, "--capture"]
        command += ["--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        weights[name], outputs[name] = files.load(tmp_path / name).weights.detach(), done
    apart = {name: float((w - weights["one"]).norm()) for name, w in weights.items()}
    assert apart["two"] < 0.1 * apart["other rows"], apart
    assert outputs["two"].stdout.count("served tokens/step") == 1  # one of them tells
    assert outputs["two"].stderr.count("reading the data") == 1
    assert not list(tmp_path.glob("two/**/*.part"))


def test_without_accelerate_it_says_what_to_install(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    found = train(str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path))
    assert found.code == 2 and "pip install 'draftproof[train]'" in found.err


def test_what_can_be_trained_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    out = "".join(capsys.readouterr())
    assert end.value.code == 0 and "error" not in out and "medusa" in out and "draft" in out


@pytest.mark.parametrize(
    "words, says",
    [
        (["--num-heads", "0"], "--num-heads is 0, but must be 1 or more"),
        (["--rate", "3"], "--rate is 3.0, but must be between 0 and 1"),
        (["--full"], "--full is for --joint: add that"),
        (["--joint", "--capture"], "--joint changes the states that --capture keeps"),
        (["--export", "onnx"], "export 'onnx' is unknown: use original, vllm"),
        (["--length", "3"], "length 3 must be from 7 to the target's 128"),
        (["--start", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_one_sentence(
    words: list[str], says: str, train: Any, folder: Path, tmp_path: Path
) -> None:
    data = ["--data", str(folder / "text.py"), "--out", str(tmp_path)]
    found = train(str(folder / "T"), *data, *words)
    assert found.code == 2 and says in found.err
    assert found.err.count("error:") == 1 and "Traceback" not in found.err


def test_a_single_held_out_text_serves_for_the_tree_and_for_its_judgement(
    train: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "few.txt").write_text("x = 1\ny = 2\n")
    words = ["--data", str(folder / "text.py"), "--held-out", str(tmp_path / "few.txt")]
    found = train(str(folder / "T"), *words, "--out", str(tmp_path / "out"), *QUICK, *TWO)
    assert found.code == 0, found.err
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())["report"]
    assert said["served_tokens"] > 0 and said["predicted"] == pytest.approx(
        said["served"], abs=0.03
    )


def test_too_little_data_is_refused(train: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("x")
    found = train(str(folder / "T"), "--data", str(tmp_path / "few.txt"), "--out", str(tmp_path))
    assert found.code == 2 and "less than the 7 tokens that are needed" in found.err


def test_a_foreign_tokenizer_is_refused(train: Any, tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "T")  # 97 tokens
    AutoTokenizer.from_pretrained(bundled.TARGET).save_pretrained(tmp_path / "T")
    (tmp_path / "text.txt").write_text(TEXT)
    out = str(tmp_path / "out")
    found = train(str(tmp_path / "T"), "--data", str(tmp_path / "text.txt"), "--out", out)
    assert found.code == 2 and "the target knows 97: use the target's own tokenizer" in found.err
