"""An interrupted `draftproof train` goes on as if it had not been; what is trained goes on too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof import bundled
from draftproof.cli import training
from draftproof.heads import files
from draftproof.training.data.rows import pack, split
from draftproof.training.data.sources import documents
from draftproof.training.jobs import job, medusa, served, setup
from draftproof.training.recipes import joint
from training_folders import QUICK, TEXT, TWO, provenance_of


def test_what_the_target_wrote_is_kept_for_a_resumption(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    words += [*TWO, "--self-distill", "--limit", "500"]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert train(*words).code == 130
    monkeypatch.undo()

    def again(*given: Any) -> None:
        raise AssertionError("written once more")

    monkeypatch.setattr(served, "own_texts", again)
    found = train(*words, "--resume")
    assert found.code == 0, found.err


def test_answers_written_before_an_interrupt_are_not_written_again(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK]
    words += [*TWO, "--self-distill", "--limit", "500"]
    kept: list[int] = []
    honest = served.Answers.keep

    def keep(self: served.Answers, number: int, tokens: list[int]) -> None:
        honest(self, number, tokens)
        kept.append(number)
        if len(kept) == cut:
            (tmp_path / "seen").write_text(self.file.read_text())
            raise KeyboardInterrupt

    def check(*given: Any) -> None:  # before any checkpoint
        raise ValueError("far enough")

    monkeypatch.setattr(served.Answers, "keep", keep)
    monkeypatch.setattr(job, "check", check)
    cut = 0
    assert train(*words, "--out", str(tmp_path / "whole")).code == 2
    whole, cut = sorted(kept), 2
    kept.clear()
    stopped = train(*words, "--out", str(tmp_path / "cut"))
    assert stopped.code == 130 and "go on with --resume" in stopped.err
    assert len((tmp_path / "seen").read_text().splitlines()) == 3 < 1 + len(whole)
    part = tmp_path / "cut" / "written.jsonl"
    part.write_text((tmp_path / "seen").read_text() + "[7, [1")  # as a kill cuts it off
    cut = 0
    assert train(*words, "--out", str(tmp_path / "cut"), "--resume").code == 2
    assert sorted(kept) == whole and len(kept) == len(whole)
    texts = [(tmp_path / name / "written.json").read_text() for name in ("whole", "cut")]
    assert json.loads(texts[0])["texts"] == json.loads(texts[1])["texts"]
    assert not part.exists()


@pytest.mark.parametrize("name", ["written.json", "written.jsonl"])
def test_what_the_target_wrote_is_neither_lost_nor_taken_for_other_data(
    name: str, train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.py").write_text(TEXT.replace("name", "other"))
    stops = {"written.json": (job, "check"), "written.jsonl": (served, "written")}
    monkeypatch.setattr(*stops[name], lambda *given: 1 / 0)  # before any checkpoint
    words = ["--out", str(tmp_path / "out"), *QUICK, *TWO, "--self-distill", "--limit", "500"]
    same = [str(folder / "T"), *words, "--data", str(folder / "text.py")]
    with pytest.raises(ZeroDivisionError):
        train(*same)
    kept = (tmp_path / "out" / name).read_text()
    refused = train(*same)
    assert refused.code == 2 and f"{name} is unfinished: add --resume" in refused.err
    other = [str(folder / "T"), *words, "--data", str(tmp_path / "other.py")]
    refused = train(*other, "--resume")
    assert refused.code == 2 and f"{name} has answers to other data" in refused.err
    assert (tmp_path / "out" / name).read_text() == kept
    for again in ([*same, "--resume"], [*other, "--overwrite"]):
        with pytest.raises(ZeroDivisionError):
            train(*again)
    assert (tmp_path / "out" / name).read_text() != kept


def test_an_interrupt_leaves_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    words[words.index("--steps") + 1] = "100000"
    program = "from draftproof.cli import main; main()"
    command = [sys.executable, "-c", program, "train", "medusa", *words, *TWO]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("tensorboard/*")) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "go on with --resume" in err and "Traceback" not in err
    said = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert said["reason"] == "interrupted" and 0 < said["step"] < 100_000


def test_an_interrupt_behind_the_last_step_is_not_forgotten(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step follows that could end for it, and the judging that does takes minutes."""
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    honest = medusa.HeadsJob.save

    def save(self: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        honest(self)

    monkeypatch.setattr(medusa.HeadsJob, "save", save)
    monkeypatch.setattr(served, "completions", lambda *given, **named: 1 / 0)  # what judges
    found = train(*words, *TWO)
    assert found.code == 130, found.err
    assert f"a checkpoint is in {tmp_path}: go on with --resume" in found.err
    assert json.loads((tmp_path / "checkpoint" / "state.json").read_text())["reason"] == "steps"


@pytest.mark.slow
def test_jointly_too_a_resumed_training_is_an_uninterrupted_one(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    words += ["--joint", "--rate", "0.05"]
    assert train(*words, "--out", str(tmp_path / "whole")).code == 0
    asked: list[int] = []
    monkeypatch.setattr(training.Shown, "stopped", lambda self: asked.append(1) or len(asked) == 3)
    with torch.random.fork_rng():
        torch.manual_seed(7)  # which nothing of it depends on
        assert train(*words, "--out", str(tmp_path / "cut")).code == 130
    monkeypatch.undo()
    checkpoint = tmp_path / "cut" / "checkpoint" / "model.safetensors"
    assert checkpoint.stat().st_size < 0.2 * (folder / "T" / "model.safetensors").stat().st_size
    found = train(*words, "--out", str(tmp_path / "cut"), "--resume")
    assert found.code == 0, found.err
    ours, theirs = (files.load(tmp_path / name).weights for name in ("whole", "cut"))
    assert torch.equal(ours, theirs)
    targets = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "target").state_dict()
        for name in ("whole", "cut")
    ]
    assert all(torch.equal(tensor, targets[1][name]) for name, tensor in targets[0].items())


def test_a_checkpoint_takes_a_lower_rate_and_names_what_else_differs(
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--out", str(tmp_path)]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert train(*words, *TWO).code == 130
    found = train(*words, "--num-heads", "3", "--resume")
    assert found.code == 2 and "was made with num_heads 2, not 3" in found.err
    monkeypatch.undo()
    found = train(*words, *TWO, "--resume", "--rate", "0.001", "--device", "cpu")
    assert found.code == 0, found.err


def test_the_papers_two_stages(train: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK]
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(*words, *TWO, "--out", str(first)).code == 0
    found = train(*words, "--out", str(second), "--start", str(first), "--joint")
    assert found.code == 0, found.err
    one, two = (files.load(there).weights.detach() for there in (first, second))
    assert one.shape == two.shape and not torch.equal(one, two)
    assert float((two - one).norm()) < 0.5 * float(one.norm())  # it did not begin anew
    before, after = provenance_of(second)["report"]["target_loss"]
    texts = documents([folder / "text.py"], AutoTokenizer.from_pretrained(bundled.TARGET))
    _, held_out = split(texts, least=4)
    held = setup.evaluation_batches(pack(held_out, 48))
    for path, loss in ((folder / "T", before), (second / "target", after)):
        target = AutoModelForCausalLM.from_pretrained(path)
        assert joint.loss(target, held) == pytest.approx(loss, abs=2e-4)
    assert before != after
    assert f"held-out text: {before:.3f} nats per token before, {after:.3f} after" in found.out
    assert f"{after:.3f} after" in (second / "README.md").read_text()
