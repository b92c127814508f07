"""What is learnt is not lost, whatever the data and whatever happens when it is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import draftproof as dp
import tiny
from draftproof import bundled, cli
from draftproof.heads import files
from draftproof.training import trainer
from draftproof.training.data.sources import documents
from draftproof.training.jobs import job, medusa, served
from training_folders import QUICK, SIZES, TWO, provenance_of


@pytest.mark.slow
def test_without_steps_there_are_at_least_300(train: Any, folder: Path, tmp_path: Path) -> None:
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
    found = train(str(folder / "T"), *words)
    assert found.code == 0, found.err
    assert json.loads((out / "provenance.json").read_text())["report"]["steps"] >= 300


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
    report = provenance_of(tmp_path)["report"]
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
    train: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder / "T"), "--data", str(folder / "text.py"), *QUICK, *TWO]
    assert train(*words, "--out", str(tmp_path / "whole")).code == 0

    def fails(*given: Any) -> None:
        raise ValueError("no power")

    monkeypatch.setattr(medusa.HeadsJob, "judge", fails)
    out = tmp_path / "cut"
    assert train(*words, "--out", str(out)).code == 2
    whole, kept = files.load(tmp_path / "whole"), files.load(out)
    assert torch.equal(kept.weights, whole.weights) and kept.tree is None
    with dp.LLM(folder / "T", speculate=dp.Medusa(out)) as llm:
        assert llm.generate(["def main"])[0].stats.drafted
    # Gone on with, it is judged, and not trained any more.
    monkeypatch.undo()
    monkeypatch.setattr(trainer._Loop, "_step", lambda *given: 1 / 0)
    found = train(*words, "--out", str(out), "--resume")
    assert found.code == 0, found.err
    assert files.load(out).tree and provenance_of(out)["report"]["steps"] == 6


def test_small_data_is_learnt_to_the_end(train: Any, folder: Path, tmp_path: Path) -> None:
    """A twentieth of it is too short for five heads; so a longer part is held out."""
    few = tmp_path / "few.txt"
    few.write_text("x = 1\ny = 2\nprint(x, y, x + y, x - y, x * y, x / y)\n")
    words = ["--data", str(few), "--calibration-tokens", "50", "--steps", "60", "--rows", "1"]
    found = train(str(folder / "T"), *words, "--out", str(tmp_path / "out"))
    assert found.code == 0 and "warning" not in found.err, found.err
    said = provenance_of(tmp_path / "out")
    assert said["held_out_tokens"] >= 7
    assert all("score" in evaluation for evaluation in said["evaluations"])
    assert all(0 <= share <= 1 for row in said["report"]["accuracies"] for share in row)


def test_what_no_held_out_text_can_tell_is_trained_to_the_end(
    train: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("x = 1")
    words = ["--data", str(folder / "text.py"), "--held-out", str(tmp_path / "short.txt"), *QUICK]
    found = train(str(folder / "T"), *words, "--num-heads", "9", "--out", str(tmp_path / "out"))
    assert found.code == 0, found.err
    assert "no held-out text has 11 tokens" in found.err and "the last are kept" in found.err
    said = provenance_of(tmp_path / "out")
    assert said["report"]["held_out"] == {"step": 6.0}
    assert [evaluation["step"] for evaluation in said["evaluations"]] == [1, 2, 3, 4, 5, 6]


def test_a_target_that_ends_at_once_has_heads_all_the_same(
    train: Any, folder: Path, tmp_path: Path
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
    found = train(str(tmp_path / "T"), *words)
    assert found.code == 0, found.err
    assert provenance_of(tmp_path / "out")["report"]["accuracies"] == [[0.0] * 10] * 5


@pytest.mark.parametrize("spare", [0, 1])
def test_as_many_tokens_as_heads_need(spare: int, train: Any, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "few.txt").write_text("x = 1\ny = 2\nprint(x, y, x + y)\n")
    (one,) = documents([tmp_path / "few.txt"], AutoTokenizer.from_pretrained(bundled.TARGET))
    heads = len(one.ids) - 2 + spare
    words = ["--data", str(tmp_path / "few.txt"), "--num-heads", str(heads), "--steps", "2"]
    words += ["--calibration-tokens", "40", "--out", str(tmp_path / "out")]
    found = train(str(folder / "T"), *words)
    if spare:
        assert found.code == 2 and f"less than the {heads + 2} tokens" in found.err
    else:
        assert found.code == 0, found.err
        assert files.load(tmp_path / "out").heads == heads
