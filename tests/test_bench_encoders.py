"""`draftproof bench` on encoder-decoders: every side reads and writes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof.bench import suite
from encoder_folders import TEXTS, prompts, saved
from encoders import decoder_alone

NEW = 10


@pytest.mark.parametrize("family", ["T5", pytest.param("BART", marks=pytest.mark.slow)])
def test_all_sides_write_the_same(family: str, tmp_path: Path) -> None:
    target = saved(tmp_path / "target", family)
    options = suite.Options(
        model=str(target),
        draft=str(saved(tmp_path / "draft", family, 1, 1)),
        methods=("none", "ngram", "draft", "early-exit", "auto"),
        against=("transformers",),
        prompts=(str(prompts(tmp_path)),),
        max_tokens=NEW,
        batches=(1, 3),
        rounds=1,
        assistant_lengths=(3,),
        dtype="float64",
    )
    report = suite.run(options, lambda text, share: None)
    sides = {(one.side, one.batch): one for one in report.results}
    for name in options.methods:
        for batch in (1, 3):
            assert sides[f"draftproof {name}", batch].differing == 0
    assert sides["transformers", 1].differing == sides["transformers", 3].differing == 0
    assert sides["transformers lookup", 1].differing == 0
    written = sides["transformers", 3].answers
    assert len(written) == len(TEXTS) and all(each.tokens for each in written)
    assert len({tuple(each.turns[0].token_ids) for each in written}) > 1
    steps = sides["draftproof ngram", 1].tokens_per_step
    assert steps is not None and steps > 1


def test_a_decoder_alone_drafts(tmp_path: Path) -> None:
    """It goes by the output; transformers' assistants do not, and that is told."""
    target, decoder = saved(tmp_path / "target", "BART"), tmp_path / "decoder"
    decoder_alone().save_pretrained(decoder)
    options = suite.Options(
        model=str(target),
        draft=str(decoder),
        methods=("none", "draft"),
        against=("transformers",),
        draft_options={"min_confidence": 0.0},
        prompts=(str(prompts(tmp_path)),),
        max_tokens=NEW,
        rounds=1,
        dtype="float64",
    )
    report = suite.run(options, lambda text, share: None)
    sides = {one.side: one for one in report.results}
    assert sides["draftproof draft"].differing == 0
    assert sides["draftproof draft"].draft_ms
    assert any("transformers assistant" in said for said in report.skipped)


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("--max-tokens", "120"), "120 tokens and one to start from exceed the 96"),
    (("--draft", "bundled"), "use a draft with the target's tokenizer\n"),
    (("--dtype", "int8"), "drop --inflate"),
    (("--runner", "native"), "drop --inflate"),
    (("--inflate", "7b"), "drop --inflate"),
    (("--method", "foreign"), "foreign"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bart"), "BART")


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refused_in_one_sentence(
    run: Any, folder: Path, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    given = ("--prompts", str(prompts(tmp_path)), "--out", str(tmp_path / "out"))
    code, _, err = run("bench", str(folder), *given, *words)
    assert code == 2 and said in err and "Traceback" not in err, err


def test_what_the_encoder_cannot_read(run: Any, folder: Path, tmp_path: Path) -> None:
    given = str(prompts(tmp_path, ["c b " * 60]))
    code, _, err = run("bench", str(folder), "--prompts", given, "--out", str(tmp_path / "out"))
    assert code == 2 and "120 tokens and the encoder reads at most 96" in err, err
