"""Data is looked at before a model is loaded for it, and while it is read that is shown."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.training.data import sources
from draftproof.training.data.sources import documents, look
from draftproof.training.jobs import setup
from tokenising import byte_tokenizer
from training_folders import QUICK

GOOD = json.dumps({"text": "def f(x): return x"}) + "\n"
EMPTY = "has nothing to learn in it: name other data"


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        (
            "a.jsonl",
            GOOD + '{"txt": "x"}',
            [],
            "a.jsonl, line 2 has the fields ['txt']: give `text`",
        ),
        (
            "a.jsonl",
            '{"text": 3}',
            [],
            "a.jsonl, line 1: `text`, `prompt` and `completion` must be",
        ),
        ("a.jsonl", '{"prompt": "x"}', [], "prompts alone are for --self-distill"),
        ("a.jsonl", '{"prompt": 3}', ["--self-distill"], "a.jsonl, line 1: `prompt` must be text"),
        ("a.jsonl", GOOD + "\n{", [], "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", '{"messages": 3}', [], "line 1: message 1 must be an object of texts"),
        ("a.json", '[{"text": "x"}, 3]', [], "a.json, entry 2 is not an object"),
        ("a.jsonl", "", [], EMPTY),
        ("a.jsonl", '{"text": " "}', [], EMPTY),
        ("a.txt", "\n", [], EMPTY),
        ("a folder", None, [], EMPTY),
        ("a.csv", "a,b", [], "a.csv is a table"),
        ("a.jsonl.gz", "text", [], "Not a gzipped file"),
    ],
)
def test_wrong_data_is_told_before_the_model_is_loaded(
    name: str,
    content: str | None,
    words: list[str],
    said: str,
    train: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "loaded", lambda *given, **named: pytest.fail("it was loaded"))
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    out = ["--out", str(tmp_path / "out"), *QUICK]
    for option in ("--data", "--held-out"):
        data = ["--data", str(folder / "text.py")] if option == "--held-out" else []
        found = train(str(folder / "T"), *data, option, str(tmp_path / name), *out, *words)
        assert found.code == 2 and said in found.err, found.err
    assert not (tmp_path / "out").exists()


def test_pairs_are_asked_for_where_there_is_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl").write_text('{"prompt": "a"}')
    with pytest.raises(ValueError, match="line 1 has no `prompt`: an encoder-decoder learns from"):
        look([tmp_path / "a.jsonl"], unanswered=True, pairs=True)
    with pytest.raises(ValueError, match="line 1 has no `completion`"):
        look([tmp_path / "b.jsonl"], unanswered=False, pairs=True)
    look([tmp_path / "b.jsonl"], unanswered=True, pairs=True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.txt"])
def test_of_a_large_file_the_beginning_is_looked_at(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind it is not, nor is a data set, which takes long to load."""
    monkeypatch.setattr(sources, "LOOKED_AT", 100)
    content = (GOOD * 5000 + "{").encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (tmp_path / "b.jsonl").write_text("{")
    look([tmp_path / name, "owner/name", tmp_path / "b.jsonl"], unanswered=False, pairs=False)


def test_what_is_read_is_told(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(None)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((GOOD * 300).encode()))
    (tmp_path / "b").mkdir()
    for number in range(300):
        (tmp_path / "b" / f"{number}.txt").write_text("x" * 50)
    (tmp_path / "c.jsonl").write_text(GOOD * 300)
    given = [tmp_path / name for name in ("a.jsonl.gz", "b", "c.jsonl")]
    shares: list[float] = []
    read = documents(given, tokenizer, told=shares.append)
    assert shares == sorted(shares) and 100 < len(shares) <= 500 and len(read) == 900
    assert shares[-1] > 0.99 and max(b - a for a, b in zip(shares, shares[1:], strict=False)) < 0.05
    shares.clear()
    documents(given[1:2], tokenizer, limit=500, told=shares.append)
    assert len(shares) == 9 and shares[-1] == pytest.approx(0.9)  # of the limit
