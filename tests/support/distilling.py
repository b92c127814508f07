"""A target that knows the cyclic language, its tokenizer and files, and options that distil it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import tiny
from cyclic import V, cycle, learnt
from draftproof.training.jobs.draft import Options
from draftproof.training.trainer import Plan


def random(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * made


@cache
def cyclic() -> Any:
    """A model of two layers that knows the cyclic language."""
    model = tiny.model("llama", vocab_size=V, num_hidden_layers=2, initializer_range=0.02)
    return learnt(model, 20, 40).requires_grad_(False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Watch:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, text: str) -> None: ...
    def share(self, done: float) -> None: ...
    def step(self, state: Any, shown: dict[str, float], plan: Plan) -> None: ...
    def line(self, text: str) -> None:
        self.lines.append(text)

    def stopped(self) -> bool:
        return False


def tokenizer(tokens: Sequence[int] = range(53)) -> Any:
    vocabulary = {f"t{token}": i for i, token in enumerate(tokens)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def language(there: Path) -> Path:
    """The folder, with `target`, and `text.jsonl` of its language."""
    cyclic().save_pretrained(there / "target")
    tokenizer().save_pretrained(there / "target")
    texts = [" ".join(f"t{i}" for i in cycle(begin, 40)) for begin in range(V)]
    (there / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return there


def options(folder: Path, kind: Any = Options, **more: Any) -> Any:
    target = str(folder / "target")
    given: dict[str, Any] = {
        "target": target,
        "source": target,
        "data": [str(folder / "text.jsonl")],
        "out": folder / "out",
        "steps": 60,
        "length": 32,
        "rows": 8,
        "rate": 1e-2,
        "calibration_tokens": 1000,
        "device": "cpu",
    }
    return kind(**{**given, **more})
