"""`draftproof train medusa` as a user runs it: what is written, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import draftproof as dp
import tiny
from draftproof import bundled, cli
from draftproof.cli import training
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.training import trainer
from draftproof.training.data.rows import Document, pack, split
from draftproof.training.data.sources import documents
from draftproof.training.jobs import job, material, medusa, served, setup
from draftproof.training.recipes import joint, quantised

TEXT = "def main(arguments):\n    for name in arguments:\n        print(name)\n\n\n" * 40
SIZES = {"vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
TWO = ["--num-heads", "2"]
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
    AutoTokenizer.from_pretrained(bundled.TARGET).save_pretrained(made / "T")
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantised_target(
    dtype: str, run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    honest = medusa.memory

    def memory(target: Any, *rest: Any) -> str:
        layers = target.named_modules()
        seen.extend(name for name, layer in layers if isinstance(layer, quantised.Int8))
        return honest(target, *rest)

    monkeypatch.setattr(medusa, "memory", memory)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    words += ["--dtype", dtype, "--quantize", "int8"]
    found = run(*words, "--out", str(tmp_path / "heads"), "--capture")
    assert found.code == 0, found.err
    assert len(seen) == 4 * 7 and not any("lm_head" in name for name in seen)
    predicted, served = map(float, re.findall(r"tokens/step (\d+\.\d+)", found.out))
    assert predicted == pytest.approx(served, rel=0.03)
    for more, what in (
        (["--quantize", "int3"], "--quantize int3 is unknown: use int8"),
        (["--joint"], "--quantize is for a target that does not learn"),
    ):
        found = run(*words, *more, "--out", str(tmp_path / "other"))
        assert found.code == 2 and what in found.err


def test_a_quantised_layer_is_near_the_one_it_was_made_of() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        linear, x = torch.nn.Linear(64, 32), torch.randn(5, 64)
    linear.weight.data[3] = 0.0
    made = quantised.Int8(linear)
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((made.weight * made.scale - linear.weight).abs() <= step / 2 + 1e-9).all()
    assert torch.allclose(made(x), linear(x), atol=0.02) and not torch.equal(made(x), linear(x))


def test_heads_are_written_with_card_and_figures(run: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    data = ["--data", str(folder / "text.py")]
    found = run(str(folder / "T"), *data, "--out", str(out), *QUICK, *TWO, "--capture")
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
    with dp.LLM(folder / "T") as plain, dp.LLM(folder / "T", speculate=dp.Medusa(out)) as fast:
        prompt = "def main"
        (slow,), (quick,) = (llm.generate([prompt]) for llm in (plain, fast))
        assert slow.token_ids == quick.token_ids and quick.stats.drafted


def test_exports_are_what_others_read(run: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, *TWO, "--export", "original", "--export", "vllm")
    assert found.code == 0, found.err
    ours = files.load(tmp_path)
    for name in ("original", "vllm"):
        other = files.load(tmp_path / name)
        torch.testing.assert_close(other.weights, ours.weights)
    weight = AutoModelForCausalLM.from_pretrained(folder / "T").get_output_embeddings().weight
    torch.testing.assert_close(files.load(tmp_path / "original").outputs[1], weight)


def test_the_target_writes_what_is_learnt(run: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, *TWO, "--self-distill", "--limit", "500")
    assert found.code == 0, found.err
    assert not (tmp_path / "written.json").exists()


def test_what_the_target_wrote_is_kept_for_a_resumption(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    words += [*TWO, "--self-distill", "--limit", "500"]
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
    monkeypatch.setattr(material.sources, "documents", read)
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
    monkeypatch.setattr(job, "check", lambda *given: 1 / 0)  # before any checkpoint
    words = ["--out", str(tmp_path / "out"), *QUICK, *TWO, "--self-distill"]
    for data in (folder / "text.py", folder / "text.py", tmp_path / "other.py"):
        with pytest.raises(ZeroDivisionError):
            run(str(folder / "T"), "--data", str(data), *words, "--limit", "500", "--resume")
    assert len(made) == 4  # of each data once what is learnt, and once what is held out


@pytest.mark.parametrize("what", ["original", "vllm"])
def test_a_disk_that_is_full_at_the_end_is_one_sentence(
    what: str, run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setitem(medusa.EXPORTS, what, full)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, *TWO, "--export", what)
    assert found.code == 2 and f"{tmp_path / what}, where" in found.err and "make room" in found.err
    assert "Traceback" not in found.err


def test_heads_of_a_layer_are_no_start(run: Any, folder: Path, tmp_path: Path) -> None:
    files.save(tmp_path / "exit", Heads(torch.zeros(1, 1, 48, 48), vocab_size=8192, exit=1))
    words = ["--data", str(folder / "text.py"), "--out", str(tmp_path / "out"), *QUICK]
    found = run(str(folder / "T"), *words, "--start", str(tmp_path / "exit"))
    assert found.code == 2 and "reads layer 1: start from Medusa heads" in found.err


@pytest.mark.parametrize("more", [[], ["--full", "--rate", "0.05"]], ids=["adapters", "full"])
def test_jointly_the_target_is_written_too(
    more: list[str], run: Any, folder: Path, tmp_path: Path
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path), *QUICK]
    found = run(*words, *TWO, "--joint", *more, "--export", "original")
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
    assert not list(tmp_path.glob("two/**/*.new"))


def test_without_steps_there_are_at_least_300(run: Any, folder: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("x = 1\ny = 2\nprint(x, y, x + y, x - y, x * y, x / y)\n")
    out = tmp_path / "heads"
    words = [
        "--data",
        str(few),
        "--out",
        str(out),
        "--calibration-tokens",
        "50",
        "--num-heads",
        "2",
    ]
    found = run(str(folder / "T"), *words)
    assert found.code == 0, found.err
    assert json.loads((out / "provenance.json").read_text())["report"]["steps"] >= 300


def test_without_accelerate_it_says_what_to_install(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    found = run(str(folder / "T"), "--data", str(folder / "text.py"), "--out", str(tmp_path))
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
    found = run(str(folder / "T"), *words, "--out", str(tmp_path / "out"), *QUICK, *TWO)
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
    AutoTokenizer.from_pretrained(bundled.TARGET).save_pretrained(tmp_path / "T")
    (tmp_path / "text.txt").write_text(TEXT)
    out = str(tmp_path / "out")
    found = run(str(tmp_path / "T"), "--data", str(tmp_path / "text.txt"), "--out", out)
    assert found.code == 2 and "the target knows 97: use the target's own tokenizer" in found.err


# --- what is learnt is not lost ---


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def told(out: Path) -> Any:
    """The provenance; what is not a number in it is an error."""
    return json.loads((out / "provenance.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def roomy(folder: Path) -> Path:
    """A target that reads 1,024 tokens, and `chats.jsonl` with prompts of 300 and more."""
    made = folder / "roomy"
    target = tiny.model(max_position_embeddings=1024, initializer_range=0.02, **SIZES)
    target.save_pretrained(made / "T")
    tokenizer = AutoTokenizer.from_pretrained(bundled.TARGET)
    tokenizer.save_pretrained(made / "T")
    prompts = [f"def f{i}(name):\n" + "    print(name)\n" * 80 for i in range(12)]
    assert all(len(tokenizer(prompt)["input_ids"]) >= 300 for prompt in prompts)
    entries = [{"prompt": prompt, "completion": "    return name\n" * 4} for prompt in prompts]
    (made / "chats.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return made


@pytest.mark.parametrize("what", [["medusa", *TWO], ["draft", "--size", "1"]])
def test_answers_to_long_prompts_are_learnt_and_served(
    what: list[str], roomy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [what[0], str(roomy / "T"), "--data", str(roomy / "chats.jsonl"), *what[1:]]
    words += ["--out", str(tmp_path), "--steps", "4", "--length", "700", "--rows", "1"]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *words, "--calibration-tokens", "200"])
    assert end.value.code == 0, capsys.readouterr().err
    report = told(tmp_path)["report"]
    assert report["served_tokens" if what[0] == "medusa" else "served"]
    assert (tmp_path / "training.png").exists()


@pytest.mark.parametrize("what", [["medusa", *TWO], ["draft", "--size", "1"]])
@pytest.mark.parametrize("cause", ["target", "prompts"])
def test_what_cannot_be_served_is_not_trained(
    what: list[str],
    cause: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if cause == "target":
        monkeypatch.setattr(LlamaForCausalLM, "_is_stateful", True)
        says = "has recurrent layers"
    else:

        def none(*given: Any) -> None:
            raise ValueError("no beginnings")

        monkeypatch.setattr(served, "prompts_of", none)
        says = "no beginnings"
    monkeypatch.setattr(job.Job, "_train", lambda *given: 1 / 0)
    words = [what[0], str(folder / "T"), "--data", str(folder / "text.py"), *what[1:], *QUICK]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *words, "--out", str(tmp_path)])
    assert end.value.code == 2 and says in capsys.readouterr().err


def test_what_was_learnt_is_there_whatever_happens_when_it_is_judged(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    assert run(*words, "--out", str(tmp_path / "whole")).code == 0

    def fails(*given: Any) -> None:
        raise ValueError("no power")

    monkeypatch.setattr(medusa.HeadsJob, "judge", fails)
    out = tmp_path / "cut"
    assert run(*words, "--out", str(out)).code == 2
    whole, kept = files.load(tmp_path / "whole"), files.load(out)
    assert torch.equal(kept.weights, whole.weights) and kept.tree is None
    with dp.LLM(folder / "T", speculate=dp.Medusa(out)) as llm:
        assert llm.generate(["def main"])[0].stats.drafted
    # Gone on with, it is judged, and not trained any more.
    monkeypatch.undo()
    monkeypatch.setattr(trainer._Loop, "_step", lambda *given: 1 / 0)
    found = run(*words, "--out", str(out), "--resume")
    assert found.code == 0, found.err
    assert files.load(out).tree and told(out)["report"]["steps"] == 6


def test_small_data_is_learnt_to_the_end(run: Any, folder: Path, tmp_path: Path) -> None:
    """A twentieth of it is too short for five heads; so a longer part is held out."""
    few = tmp_path / "few.txt"
    few.write_text("x = 1\ny = 2\nprint(x, y, x + y, x - y, x * y, x / y)\n")
    words = ["--data", str(few), "--calibration-tokens", "50", "--steps", "60", "--rows", "1"]
    found = run(str(folder / "T"), *words, "--out", str(tmp_path / "out"))
    assert found.code == 0 and "warning" not in found.err, found.err
    said = told(tmp_path / "out")
    assert said["held_out_tokens"] >= 7
    assert all("score" in evaluation for evaluation in said["evaluations"])
    assert all(0 <= share <= 1 for row in said["report"]["accuracies"] for share in row)


def test_what_no_held_out_text_can_tell_is_trained_to_the_end(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("x = 1")
    words = ["--data", str(folder / "text.py"), "--held-out", str(tmp_path / "short.txt"), *QUICK]
    found = run(str(folder / "T"), *words, "--num-heads", "9", "--out", str(tmp_path / "out"))
    assert found.code == 0, found.err
    assert "no held-out text has 11 tokens" in found.err and "the last are kept" in found.err
    said = told(tmp_path / "out")
    assert said["report"]["held_out"] == {"step": 6.0}
    assert [evaluation["step"] for evaluation in said["evaluations"]] == [1, 2, 3, 4, 5, 6]


def test_a_target_that_ends_at_once_has_heads_all_the_same(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    target = tiny.model(dtype=torch.float32, initializer_range=0.02, **SIZES)
    with torch.no_grad():
        for block in target.model.layers:
            block.mlp.down_proj.weight.zero_()
            block.self_attn.o_proj.weight.zero_()
        target.model.embed_tokens.weight.fill_(1.0)
        target.lm_head.weight.zero_()
        target.lm_head.weight[0] = 1.0  # the end
    target.save_pretrained(tmp_path / "T")
    AutoTokenizer.from_pretrained(bundled.TARGET).save_pretrained(tmp_path / "T")
    words = ["--data", str(folder / "text.py"), *QUICK, "--out", str(tmp_path / "out")]
    found = run(str(tmp_path / "T"), *words)
    assert found.code == 0, found.err
    assert told(tmp_path / "out")["report"]["accuracies"] == [[0.0] * 10] * 5


@pytest.mark.parametrize("spare", [0, 1])
def test_as_many_tokens_as_heads_need(spare: int, run: Any, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "few.txt").write_text("x = 1\ny = 2\n")
    (one,) = documents([tmp_path / "few.txt"], AutoTokenizer.from_pretrained(bundled.TARGET))
    heads = len(one.ids) - 2 + spare
    words = ["--data", str(tmp_path / "few.txt"), "--num-heads", str(heads), "--steps", "2"]
    words += ["--calibration-tokens", "40", "--out", str(tmp_path / "out")]
    found = run(str(folder / "T"), *words)
    if spare:
        assert found.code == 2 and f"less than the {heads + 2} tokens" in found.err
    else:
        assert found.code == 0, found.err
        assert files.load(tmp_path / "out").heads == heads


# --- going on ---


def test_jointly_too_a_resumed_training_is_an_uninterrupted_one(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    words += ["--joint", "--rate", "0.05"]
    assert run(*words, "--out", str(tmp_path / "whole")).code == 0
    asked: list[int] = []
    monkeypatch.setattr(training.Shown, "stopped", lambda self: asked.append(1) or len(asked) == 3)
    with torch.random.fork_rng():
        torch.manual_seed(7)  # which nothing of it depends on
        assert run(*words, "--out", str(tmp_path / "cut")).code == 130
    monkeypatch.undo()
    checkpoint = tmp_path / "cut" / "checkpoint" / "model.safetensors"
    assert checkpoint.stat().st_size < 0.2 * (folder / "T" / "model.safetensors").stat().st_size
    found = run(*words, "--out", str(tmp_path / "cut"), "--resume")
    assert found.code == 0, found.err
    ours, theirs = (files.load(tmp_path / name).weights for name in ("whole", "cut"))
    assert torch.equal(ours, theirs)
    targets = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "target").state_dict()
        for name in ("whole", "cut")
    ]
    assert all(torch.equal(tensor, targets[1][name]) for name, tensor in targets[0].items())


def test_a_checkpoint_takes_a_lower_rate_and_names_what_else_differs(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--out", str(tmp_path)]
    monkeypatch.setattr(training.Shown, "stopped", lambda self: True)
    assert run(*words, *TWO).code == 130
    found = run(*words, "--num-heads", "3", "--resume")
    assert found.code == 2 and "was made with num_heads 2, not 3" in found.err
    monkeypatch.undo()
    found = run(*words, *TWO, "--resume", "--rate", "0.001", "--device", "cpu")
    assert found.code == 0, found.err


def test_the_papers_two_stages(run: Any, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK]
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(*words, *TWO, "--out", str(first)).code == 0
    found = run(*words, "--out", str(second), "--start", str(first), "--joint")
    assert found.code == 0, found.err
    one, two = (files.load(there).weights.detach() for there in (first, second))
    assert one.shape == two.shape and not torch.equal(one, two)
    assert float((two - one).norm()) < 0.5 * float(one.norm())  # it did not begin anew
    before, after = told(second)["report"]["target_loss"]
    texts = documents([folder / "text.py"], AutoTokenizer.from_pretrained(bundled.TARGET))
    _, held_out = split(texts, least=4)
    held = setup.evaluation_batches(pack(held_out, 48))
    for path, loss in ((folder / "T", before), (second / "target", after)):
        target = AutoModelForCausalLM.from_pretrained(path)
        assert joint.loss(target, held) == pytest.approx(loss, abs=2e-4)
    assert before != after
    assert f"held-out text: {before:.3f} nats per token before, {after:.3f} after" in found.out
    assert f"{after:.3f} after" in (second / "README.md").read_text()


# --- what it says, and on what ---


def test_heads_are_judged_in_the_precision_they_serve_in(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    honest = medusa.Medusa.ranks

    def watched(recipe: Any, batch: Any) -> Any:
        seen.append((recipe.heads.weights.dtype, torch.is_autocast_enabled("cpu")))
        return honest(recipe, batch)

    monkeypatch.setattr(medusa.Medusa, "ranks", watched)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    found = run(*words, "--dtype", "float16", "--out", str(tmp_path))
    assert found.code == 0, found.err
    assert seen[-1] == (torch.float16, False)


def test_memory_is_that_of_all_that_learns(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def memory(target: Any, *given: Any) -> str:
        counted.append(sum(p.requires_grad for p in target.parameters()))
        raise ValueError("seen")

    monkeypatch.setattr(medusa, "memory", memory)
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, "--out", str(tmp_path)]
    for more in ([], ["--joint"], ["--joint", "--full"]):
        assert run(*words, *more).code == 2
    assert counted[0] == 0 < counted[2] < counted[1]  # an adapter is two matrices
    monkeypatch.undo()
    frozen = torch.nn.Parameter(torch.empty(1_000_000_000, dtype=torch.bfloat16, device="meta"))
    frozen.requires_grad_(False)
    adapter = torch.nn.Parameter(torch.empty(100_000_000, device="meta"))
    config = SimpleNamespace(num_hidden_layers=2, hidden_size=8)
    target: Any = SimpleNamespace(
        parameters=lambda: [frozen, adapter],
        buffers=list,
        config=SimpleNamespace(get_text_config=lambda: config),
        device=torch.device("cpu"),
    )
    heads = Heads(torch.zeros(1, 1, 8, 8), vocab_size=97)
    text = medusa.memory(target, heads, trainer.Plan(1, 1), 8, joint=True)
    assert "target 2.00, what is trained with gradients and moments 1.60" in text


@pytest.mark.parametrize("processes", [1, 3, 6])
def test_rows_of_a_step_divide_among_processes(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    options = job.Options("T", "T", [], tmp_path, accumulate=2)
    rows = pack([Document([1] * 16)] * 400, 16)
    count = setup.plan(options, SimpleNamespace(dtype=torch.float32), rows, 512).rows
    assert count % (2 * processes) == 0 and 16 <= count < 16 + 2 * processes


def test_the_device_that_was_asked_for_is_the_one_that_is_trained_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(setup.loading, "pick_device", lambda name: gpu)
    monkeypatch.setattr(setup.loading, "load", lambda *given, **named: named["device"])
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    options = job.Options("T", str(folder / "T"), [], tmp_path, device="cuda:1")
    assert setup.target(options)[0] == gpu and chosen == [gpu]


def test_a_difference_between_predicted_and_served_is_said() -> None:
    lines: list[str] = []
    for predicted, got, tokens in ((2.0, 2.05, 20_000), (2.0, 2.2, 100), (2.0, 1.9, 20_000)):
        served.compare(predicted, got, tokens, lines.append)
    assert lines == [
        "warning: 2.00 tokens/step were predicted and 1.90 served: one of them is wrong, so "
        "report it"
    ]
    done = [SimpleNamespace(warnings=some) for some in (["b"], ["a", "b"], [])]
    lines.clear()
    served.pass_on_warnings(done, lines.append)
    assert lines == ["a", "b"]


def test_warnings_of_the_engine_are_passed_on(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(medusa.served, "pass_on_warnings", lambda _, line: line("the engine warns"))
    monkeypatch.setattr(medusa.served, "compare", lambda *given: given[-1](f"compared {given[:3]}"))
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    found = run(*words, "--out", str(tmp_path))
    report = told(tmp_path)["report"]
    three = (report["predicted"], report["served"], report["served_tokens"])
    assert "the engine warns" in found.err and f"compared {three}" in found.err
