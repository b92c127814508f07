"""`foretoken train medusa` as a user runs it: what is written, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

import foretoken as ft
import tiny
from foretoken import checkpoints, cli, demo
from foretoken.cli import training
from foretoken.heads import Heads
from foretoken.training import prepare, run_medusa, served

TEXT = "def main(arguments):\n    for name in arguments:\n        print(name)\n\n\n" * 40
SIZES = {"vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
QUICK = ["--steps", "6", "--length", "48", "--rows", "2", "--calibration-tokens", "200"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target with a tokenizer, and a text."""
    made = tmp_path_factory.mktemp("target")
    tiny.model(dtype=torch.float32, initializer_range=0.02, **SIZES).save_pretrained(made / "T")
    AutoTokenizer.from_pretrained(demo.TARGET).save_pretrained(made / "T")
    (made / "text.py").write_text(TEXT)
    return made


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Result:
        with pytest.raises(SystemExit) as end:
            cli.main(["train", "medusa", *words])
        out, err = capsys.readouterr()
        return Result(end.value.code, out, err)

    return run


def test_heads_are_written_with_card_and_figures(run: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    data = ["--data", str(folder / "text.py")]
    found = run(str(folder / "T"), *data, "--out", str(out), *QUICK, "--heads", "2", "--capture")
    assert found.code == 0, found.err
    assert "memory: about" in found.err and "hidden states:" in found.err
    predicted, served = map(float, re.findall(r"tokens/step (\d+\.\d+)", found.out))
    assert predicted == pytest.approx(served, rel=0.03)
    said = json.loads((out / "provenance.json").read_text())
    assert said["report"]["served"] == pytest.approx(served, abs=0.006)
    assert said["report"]["ended"] == "steps" and said["report"]["steps"] == 6
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: foretoken") and "served tokens/step" in card
    assert {file.name for file in out.iterdir()} >= {"model.safetensors", "config.json"}
    assert not (out / "checkpoint").exists() and not (out / "best.pt").exists()
    heads = checkpoints.load(out)
    assert heads.heads == 2 and heads.tree and heads.accuracies and heads.outputs is None
    with ft.LLM(folder / "T") as plain, ft.LLM(folder / "T", speculate=ft.Medusa(out)) as fast:
        prompt = "def main"
        (slow,), (quick,) = (llm.generate([prompt]) for llm in (plain, fast))
        assert slow.token_ids == quick.token_ids and quick.stats.drafted


def test_exports_are_what_others_read(run: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, "--heads", "2", "--export", "original", "--export", "vllm")
    assert found.code == 0, found.err
    ours = checkpoints.load(tmp_path)
    for name in ("original", "vllm"):
        other = checkpoints.load(tmp_path / name)
        torch.testing.assert_close(other.weights, ours.weights)
    weight = AutoModelForCausalLM.from_pretrained(folder / "T").get_output_embeddings().weight
    torch.testing.assert_close(checkpoints.load(tmp_path / "original").outputs[1], weight)


def test_the_target_writes_what_is_learnt(run: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, "--heads", "2", "--self-distill", "--limit", "500")
    assert found.code == 0, found.err
    assert not (tmp_path / "written.json").exists()


def test_what_the_target_wrote_is_kept_for_a_resumption(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    words += ["--heads", "2", "--self-distill", "--limit", "500"]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert run(*words).code == 130
    monkeypatch.undo()

    def again(*given: Any) -> None:
        raise AssertionError("written once more")

    monkeypatch.setattr(served, "own_texts", again)
    found = run(*words, "--resume")
    assert found.code == 0, found.err


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
    run: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*given: Any, **named: Any) -> None:
        raise AssertionError("the data was read")

    (tmp_path / "checkpoint").mkdir()
    monkeypatch.setattr(prepare.texts, "documents", read)
    data = ["--data", str(folder / "text.py"), "--out", str(tmp_path), "--self-distill"]
    found = run(str(folder / "T"), *data, *words)
    assert found.code == 2 and says in found.err


def test_what_the_target_wrote_of_other_data_is_not_learnt(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.py").write_text(TEXT.replace("name", "other"))
    made: list[int] = []
    honest = served.own_texts

    def counted(*given: Any) -> Any:
        made.append(len(given[1]))
        return honest(*given)

    monkeypatch.setattr(served, "own_texts", counted)
    monkeypatch.setattr(run_medusa, "check", lambda *given: 1 / 0)  # before any checkpoint
    words = ["--out", str(tmp_path / "out"), *QUICK, "--heads", "2", "--self-distill"]
    for data in (folder / "text.py", folder / "text.py", tmp_path / "other.py"):
        with pytest.raises(ZeroDivisionError):
            run(str(folder / "T"), "--data", str(data), *words, "--limit", "500", "--resume")
    assert len(made) == 2  # of each data once


@pytest.mark.parametrize("what", ["original", "vllm"])
def test_a_disk_that_is_full_at_the_end_is_one_sentence(
    what: str, run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setitem(run_medusa.EXPORTS, what, full)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, "--heads", "2", "--export", what)
    assert found.code == 2 and f"{tmp_path / what}, where" in found.err and "make room" in found.err
    assert "Traceback" not in found.err


def test_heads_of_a_layer_are_no_start(run: Any, folder: Path, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "exit", Heads(torch.zeros(1, 1, 48, 48), vocab_size=8192, exit=1))
    words = ["--data", str(folder / "text.py"), "--out", str(tmp_path / "out"), *QUICK]
    found = run(str(folder / "T"), *words, "--start", str(tmp_path / "exit"))
    assert found.code == 2 and "reads layer 1: start from Medusa heads" in found.err


@pytest.mark.parametrize("more", [[], ["--full", "--rate", "0.05"]], ids=["adapters", "full"])
def test_jointly_the_target_is_written_too(
    more: list[str], run: Any, folder: Path, tmp_path: Path
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, "--heads", "2", "--joint", *more, "--export", "original")
    assert found.code == 0, found.err
    before = AutoModelForCausalLM.from_pretrained(folder / "T").state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "target").state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert checkpoints.load(tmp_path).target == str(tmp_path / "target")
    assert f"base_model: {tmp_path / 'target'}" in (tmp_path / "README.md").read_text()
    ours = checkpoints.load(tmp_path / "original").outputs
    assert ours is not None and torch.equal(ours[0], after["lm_head.weight"])
    assert bool(more) != torch.equal(ours[0], before["lm_head.weight"])  # adapters leave it alone


def test_an_interrupt_leaves_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    words[words.index("--steps") + 1] = "100000"
    program = "from foretoken.cli import main; main()"
    command = [sys.executable, "-c", program, "train", "medusa", *words, "--heads", "2"]
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


@pytest.mark.slow  # imports everything four times
def test_two_processes_train_what_one_does(folder: Path, tmp_path: Path) -> None:
    """Started as torchrun and accelerate do: the same rows a step, so nearly the same weights."""
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--heads", "2"]
    program, environment = [sys.executable, "-m"], os.environ | {"OMP_NUM_THREADS": "1"}
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    weights, outputs = {}, {}
    for name, before, more in (
        ("one", [], []),
        ("two", launch, []),
        ("other rows", [], ["--seed", "1"]),
    ):
        command = [*program, *before, "foretoken", "train", "medusa", *words, *more, "--capture"]
        command += ["--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        weights[name], outputs[name] = checkpoints.load(tmp_path / name).weights.detach(), done
    apart = {name: float((w - weights["one"]).norm()) for name, w in weights.items()}
    assert apart["two"] < 0.1 * apart["other rows"], apart
    assert outputs["two"].stdout.count("served tokens/step") == 1  # one of them tells
    assert outputs["two"].stderr.count("reading the data") == 1
    assert not list(tmp_path.glob("two/**/*.new"))


def test_without_steps_there_are_at_least_300(run: Any, folder: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("x = 1\ny = 2\nprint(x, y, x + y, x - y, x * y, x / y)\n")
    out = tmp_path / "heads"
    words = ["--data", str(few), "--out", str(out), "--calibration-tokens", "50", "--heads", "2"]
    found = run(str(folder / "T"), *words)
    assert found.code == 0, found.err
    assert json.loads((out / "provenance.json").read_text())["report"]["steps"] >= 300


def test_without_accelerate_it_says_what_to_install(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "find_spec", lambda name: None)
    found = run(str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path))
    assert found.code == 2 and "pip install 'foretoken[train]'" in found.err


def test_what_can_be_trained_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    out = "".join(capsys.readouterr())
    assert end.value.code == 0 and "error" not in out and "medusa" in out and "draft" in out


@pytest.mark.parametrize(
    "words, says",
    [
        (["--heads", "0"], "--heads is 0, but must be 1 or more"),
        (["--rate", "3"], "--rate is 3.0, but must be between 0 and 1"),
        (["--full"], "--full is for --joint: add that"),
        (["--joint", "--capture"], "--joint changes the states that --capture keeps"),
        (["--export", "onnx"], "export 'onnx' is unknown: use original, vllm"),
        (["--length", "3"], "length 3 must be from 7 to the target's 128"),
        (["--start", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_one_sentence(
    words: list[str], says: str, run: Any, folder: Path, tmp_path: Path
) -> None:
    data = ["--data", str(folder / "text.py"), "--out", str(tmp_path)]
    found = run(str(folder / "T"), *data, *words)
    assert found.code == 2 and says in found.err
    assert found.err.count("error:") == 1 and "Traceback" not in found.err


def test_a_single_held_out_text_serves_for_the_tree_and_for_its_judgement(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "few.txt").write_text("x = 1\ny = 2\n")
    words = ["--data", str(folder / "text.py"), "--held-out", str(tmp_path / "few.txt")]
    found = run(str(folder / "T"), *words, "--out", str(tmp_path / "out"), *QUICK, "--heads", "2")
    assert found.code == 0, found.err
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())["report"]
    assert said["served_tokens"] > 0 and said["predicted"] == pytest.approx(
        said["served"], abs=0.03
    )


def test_too_little_data_is_refused(run: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("x")
    found = run(str(folder / "T"), "--data", str(tmp_path / "few.txt"), "--out", str(tmp_path))
    assert found.code == 2 and "less than the 7 tokens that are needed" in found.err


def test_a_foreign_tokenizer_is_refused(run: Any, tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "T")  # 97 tokens
    AutoTokenizer.from_pretrained(demo.TARGET).save_pretrained(tmp_path / "T")
    (tmp_path / "text.txt").write_text(TEXT)
    out = str(tmp_path / "out")
    found = run(str(tmp_path / "T"), "--data", str(tmp_path / "text.txt"), "--out", out)
    assert found.code == 2 and "the target knows 97: use the target's own tokenizer" in found.err
