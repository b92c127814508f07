"""`draftproof bench`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from draftproof.bench import files, suite
from draftproof.cli import bench

ALONE = ("--max-tokens=4", "--num-prompts=1", "--rounds=1", "--methods=none", "--against=")


def test_the_command_from_end_to_end(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "results"
    words = "--draft D --max-tokens 8 --num-prompts 2 --rounds 2 --temperature 0 --temperature 0.7"
    result = run(
        *("bench", "T", *words.split(), "--export", "spec-bench", "--out", str(out)),
        *("--method", "none,ngram", "--methods", "draft", "--method", "ngram+draft"),
    )
    assert result.code == 0, result.err
    assert "ngram+draft" in result.out and "plain steps" not in result.out
    verdicts = [line for line in result.out.splitlines() if "draftproof generate " in line]
    assert len(verdicts) == 1 and verdicts[0].startswith(("Fastest here: ", "Plain decoding is"))
    (file,) = out.glob("*.json")
    found = json.loads(file.read_text())
    assert found["prompts"] == 2 and found["environment"]["torch"]
    assert len(found["results"]) == 2 * (4 + 3)
    for each in found["results"]:
        assert len(each["tokens_per_s"]) == 2
        sampled_peer = each["temperature"] and each["side"].startswith("transformers")
        assert each["differing"] == (None if sampled_peer else 0)
        assert each["of_plain"]["low"] <= each["of_plain"]["median"] <= each["of_plain"]["high"]
        if each["side"] == "draftproof draft":
            assert each["predicted"]["speedup"] > 0 and "plain steps" in each["why"]
            assert 0 < each["acceptance"]["alpha"] <= 1
    assert (out / f"{file.stem}.png").read_bytes().startswith(b"\x89PNG")
    lines = (out / f"{file.stem}-draftproof-draft-T0-batch1.jsonl").read_text().splitlines()
    (choice,) = json.loads(lines[0])["choices"]
    assert choice["new_tokens"] == [8] and sum(choice["accept_lengths"]) == 8
    assert choice["decoding_steps"] == [len(choice["accept_lengths"])] and len(lines) == 2


def test_batches_leave_out_who_takes_one_prompt(run: Any, tmp_path: Path) -> None:
    words = "--draft D --max-tokens 6 --num-prompts 3 --rounds 1 --batch 2"
    result = run("bench", "T", *words.split(), "--out", str(tmp_path))
    assert result.code == 0 and "they take one prompt at once" in " ".join(result.out.split())
    (file,) = tmp_path.glob("*.json")
    names = [each["side"] for each in json.loads(file.read_text())["results"]]
    assert names == ["draftproof none", "draftproof ngram", "draftproof draft", "transformers"]


def test_a_batch_that_no_prompts_fill_is_told(run: Any, tmp_path: Path) -> None:
    words = ("--batch", "1", "--batch", "3", "--out", str(tmp_path))
    result = run("bench", "T", *ALONE, *words)
    told = [line for line in result.out.splitlines() if line.startswith("batch ")]
    assert told == ["batch 3: there is 1 prompt, which was written alone; give more"]


def test_without_matplotlib_there_is_no_picture(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "draw", lambda *_: False)
    result = run("bench", "T", *ALONE, "--out", str(tmp_path))
    assert result.code == 0 and "draftproof[bench]" in result.err
    assert len(list(tmp_path.iterdir())) == 1


def test_results_that_cannot_be_written_still_print_the_table(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    words = ("bench", "T", *ALONE, "--out", str(tmp_path / "file" / "below"))
    result = run(*words)
    assert result.code == 2 and "file is a file; give another folder as --out" in result.err
    assert not result.out
    monkeypatch.setattr(bench, "check_folder", lambda out: None)  # as of a disk that is full then
    result = run(*words)
    assert result.code == 2 and "cannot write results" in result.err
    assert "\nnone " in result.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--methods draft", "--draft MODEL"),
        ("--methods medusa", "needs heads"),
        ("--methods eagle", "unknown"),
        ("--rounds 0", "rounds is 0"),
        ("--max-tokens 0", "max_tokens is 0"),
        ("--batch 0", "batch size"),
        ("--batch 100000000", "100,000,000 texts at once take"),
        ("--num-prompts 0", "num_prompts is 0"),
        ("--temperature -1", "temperature"),
        ("--export csv", "spec-bench"),
        ("--branch 2", "--draft MODEL"),
        ("--prompts missing.jsonl", "cannot read the prompts"),
        ("--against vllm", "vllm is unknown: use transformers"),
        ("--method ngrm", "did you mean ngram"),
        ("--system be-brief", "no chat template: leave out --chat and --system"),
        ("--inflate none-such", "none-such"),
        ("--max-tokens 250", "exceed"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, line: str, says: str, tmp_path: Path) -> None:
    result = run("bench", "T", *line.split(), "--out", str(tmp_path / "out"))
    assert result.code == 2 and says in result.err, result
    assert len(result.err.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_draft_of_another_vocabulary_is_refused(
    run: Any,
    tmp_path: Path,
    pair: Path,
) -> None:
    tiny.model(vocab_size=4096).save_pretrained(tmp_path / "other")
    result = run("bench", "T", "--draft", str(tmp_path / "other"))
    assert result.code == 2 and "8192" in result.err and "4096" in result.err


def test_options_are_checked_before_anything_is_loaded() -> None:
    for options, says in (
        ({"rounds": 0}, "rounds"),
        ({"against": ["ollama"]}, "ollama"),
        ({"prompts": ["no/such.jsonl"]}, "cannot read the prompts no/such.jsonl"),
    ):
        with pytest.raises(ValueError, match=says):
            suite.run(suite.Options("no/such/model", **options), lambda *_: None)


def test_the_reasons_are_told_where_they_are_asked_for(run: Any, tmp_path: Path) -> None:
    result = run("bench", "T", *ALONE, "--explain", "--out", str(tmp_path))
    assert result.code == 0 and "A pass over one token takes " in result.out
