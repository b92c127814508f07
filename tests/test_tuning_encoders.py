"""`dp.tune` on encoder-decoders: a replay is what the engine does, and its profile is used."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof as dp
from draftproof import bundled
from draftproof.tuning import reading, recording, sources
from draftproof.tuning.records import Text
from encoder_folders import saved
from encoders import model, prompts


@pytest.mark.parametrize(
    ("family", "temperatures"),
    [
        ("T5", (0.7,)),
        pytest.param("T5", (0.0,), marks=pytest.mark.slow),
        pytest.param("BART", (0.0, 0.7), marks=pytest.mark.slow),
    ],
)
def test_what_was_found_is_what_runs(
    family: str, temperatures: tuple[float, ...], tmp_path: Path
) -> None:
    """Predicted tokens per step are those of the runs, whatever drafts, and no text is another."""
    near = copy.deepcopy(model(family))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for weight in near.parameters():
            weight += 0.02 * weight.std(correction=0) * torch.randn_like(weight)
    near.save_pretrained(tmp_path / "draft")
    given = [*prompts(3), [3] * 97, [7]]
    with dp.LLM(model(family), speculate=None, max_batch=2) as llm:
        found = dp.tune(
            llm,
            given,
            drafts=[str(tmp_path / "draft")],
            temperatures=temperatures,
            max_tokens=14,
            batches=(2,),
            rounds=1,
            records=tmp_path / "records",
        )
    assert found.prompts["used"] == (4 if family == "T5" else 3)  # whose encoder has no positions
    assert "prompt 5 is too short (1 tokens)" in found.prompts["left_out"]
    drafted = 0.0
    for rows in found.cases().values():
        ran = [row for row in rows if row.measured is not None]
        assert len(ran) == 8 and not any(row.differing for row in ran)  # in one round all run
        for row in ran:
            if not row.choice.decides:
                assert row.measured_tokens_per_step == pytest.approx(row.tokens_per_step)
                drafted = max(drafted, row.tokens_per_step)
    assert drafted > 1.2, "nothing was accepted, and nothing tested"


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_reading_ahead_drafts_what_a_live_run_does(family: str, tmp_path: Path) -> None:
    """With what the encoder read, in records that come back from a file."""
    options = (("tree", tuple(sources.recorded_paths())),)
    draft: Any = sources.Part("draft", options, model(family, 1, 1))  # type: ignore[arg-type]
    source = sources.Source("draft d", draft, grows=True)
    params = dp.SamplingParams(temperature=0.7, max_tokens=20, seed=3)
    with dp.LLM(model(family), speculate=None, max_batch=3) as llm:
        given = prompts(3)
        texts = recording.write(llm, given, ["all"] * 3, params, [source])
        for text, prompt in zip(texts, given, strict=True):
            assert text.asked == prompt and len(text.prompt) == 1
            text.save(tmp_path / "text.npz")
            again = Text.load(tmp_path / "text.npz")
            assert again.reads == prompt
            runner = dp.LLM(model(family, 1, 1), speculate=None).runner
            trees = reading.read(
                runner, llm.runner.vocabulary, again, params, sources.recorded_paths()
            )
            live = text.trees["draft d"]
            for at, tree in enumerate(trees):
                root = recording.root(text, at)
                assert live.tree(at, root).tokens == tree.tokens, at


def test_the_command_and_its_profile(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundled, "MODELS", bundled.FOLDER / "models")
    words = ("--num-prompts", "3", "--rounds", "1", "--batch", "1", "--json")
    draft = str(bundled.folder("mender-draft"))
    out = f"{tmp_path / 'profile.json'}"
    code, said, err = run("tune", "bundled-mender", *words, "--draft", draft, "--out", out)
    assert code == 0, err
    found = json.loads(said)
    names = {each["name"] for each in found["sources"]}
    assert names == {"ngram", "suffix", "draft mender-draft"}
    assert found["prompts"]["used"] == 3 and found["prompts"]["max_tokens"] == 127
    best = max(row["tokens_per_step"] for row in found["table"])
    assert best > 3  # mended code is mostly what was read
    text = "def area(width, height)\n    retrun width * height"
    code, said, err = run("generate", "bundled-mender", text, "--profile", out)
    assert (code, said) == (0, "def area(width, height):\n    return width * height\n"), err


def test_too_many_tokens(run: Any, tmp_path: Path) -> None:
    folder = str(saved(tmp_path / "model", "BART"))
    code, _, err = run("tune", folder, "--max-tokens", "96", "--out", f"{tmp_path}")
    assert code == 2 and "96 tokens and one to start from exceed the 96" in err, err
