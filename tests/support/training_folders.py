"""A small target with a tokenizer and a text, and `draftproof train medusa` on it; fixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import tiny
from cyclic import V, learnt
from draftproof import bundled, cli

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
    """A random target with a tokenizer (T), and a text (text.py)."""
    there = tmp_path_factory.mktemp("target")
    tiny.model(dtype=torch.float32, initializer_range=0.02, **SIZES).save_pretrained(there / "T")
    AutoTokenizer.from_pretrained(bundled.TARGET).save_pretrained(there / "T")
    (there / "text.py").write_text(TEXT)
    return there


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str]) -> Any:
    """`draftproof train medusa` with these words."""

    def train(*words: str) -> Result:
        with pytest.raises(SystemExit) as end:
            cli.main(["train", "medusa", *words])
        out, err = capsys.readouterr()
        return Result(end.value.code, out, err)

    return train


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def provenance_of(out: Path) -> Any:
    """The provenance; what is not a number in it is an error."""
    return json.loads((out / "provenance.json").read_text(), parse_constant=_refuse)


@pytest.fixture(scope="module")
def cyclic() -> Any:
    """A model that knows the cyclic language, trained here in a second or two."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=V,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=None,
                tie_word_embeddings=False,
            )
        )
    return learnt(model, 24, 60)
