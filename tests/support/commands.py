"""Commands as fixtures: run in this process on a random pair of models."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoTokenizer

import tiny
from draftproof import bundled, cli

TOKENIZER = bundled.TARGET


SIZES = {
    "vocab_size": 8192,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random target and a draft that often agrees, as the bundled ones lie."""
    folder = tmp_path_factory.mktemp("pair")
    target = tiny.model(dtype=torch.float64, **SIZES)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    for name, model in (("target", target), ("draft", tiny.relative(target, 0.03))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def run(pair: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`draftproof` with these arguments; T and D are the random target and draft."""
    monkeypatch.setattr(bundled, "MODELS", pair)
    stand_ins = {"T": str(pair / "target"), "D": str(pair / "draft")}

    def run(*arguments: str, stdin: bytes | None = None, tty: bool = False) -> Result:
        words = [stand_ins.get(word, word) for word in arguments]
        source = io.TextIOWrapper(io.BytesIO(stdin or b""))
        monkeypatch.setattr(source, "isatty", lambda: tty)
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()  # what the test itself made libraries say
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        out, err = capsys.readouterr()
        return Result(end.value.code, out, err)

    return run
