"""The models of the matrix: the bundled ones in every precision, and what drafts for them.

Everything else that is needed is made in a folder: a GGUF file, profiles, heads for the
encoder-decoder, and a draft whose tokenizer has other ids.
"""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import draftproof as dp
from draftproof import bundled, profiles
from draftproof.bundled.damaged import held_out
from draftproof.convert import convert
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.profiles import Choice, Part
from draftproof.runners import costs, kept

TOKENS = 16  # of a text
SHORTER = (TOKENS, 5, TOKENS, 9, 12)  # in a ragged batch, which runs three at a time
CODE = (
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self",
    "import os\n",
    "def area(width, height):\n    return",
    "for number in range(10):\n    print(number)\nfor number in range(10):\n    print(",
    "class Reader:\n    def __init__(self, path):\n        self.path = path\n\n    def read(",
    "try:\n    value = int(text)\nexcept ValueError",
    "x",
    "def parse(line):\n    key, value = line.split('=')\n    return key, value\n\ndef parse(line",
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8", "int4": "int4"}


class Model:
    """A kind of model, and what drafts for it. folder: for what has to be made."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.encodes = kind == "encoder-decoder"
        self.name = bundled.MENDER if self.encodes else bundled.BUNDLED
        if kind == "GGUF":
            self.name = str(self._gguf())
        self.dtype = DTYPES.get(kind, "auto")
        self.path = bundled.folder("mender" if self.encodes else "target")
        self.draft = bundled.MENDER if self.encodes else bundled.BUNDLED
        self.known: dict[Any, Any] = {}  # what was written plainly

    @cached_property
    def base(self) -> dp.LLM:
        """Without drafts."""
        cached = self.kind in ("bf16", "int8", "int4")  # rounding to four bits takes seconds
        return dp.LLM(self.name, dtype=self.dtype, speculate=None, cache_weights=cached)

    @cached_property
    def tokenizer(self) -> Any:
        made = AutoTokenizer.from_pretrained(self.path, padding_side="left")
        made.pad_token = made.pad_token or made.eos_token
        return made

    @cached_property
    def loaded(self) -> Any:
        """For transformers."""
        kind = AutoModelForSeq2SeqLM if self.encodes else AutoModelForCausalLM
        return kind.from_pretrained(self.path, dtype=torch.float32).eval()

    @cached_property
    def texts(self) -> list[str]:
        if not self.encodes:
            return list(CODE)
        return [pair.text for pair in held_out(8, 5, lambda pair: len(pair.text) < 160)]

    def prompts(self, batch: str) -> list[tuple[int, str, int]]:
        """Number, text and tokens to be written of each prompt."""
        if batch == "ragged":
            return [(at, self.texts[at], most) for at, most in enumerate(SHORTER)]
        return [(at, text, TOKENS) for at, text in enumerate(self.texts[: int(batch)])]

    def speculate(self, method: str) -> Any:
        """What `LLM(speculate=)` takes, made anew. Raises `ValueError`."""
        made: dict[str, Any] = {
            "none": lambda: None,
            "early-exit": lambda: dp.EarlyExit(1),
            "draft": lambda: dp.DraftModel(self.draft),
            "staged": lambda: dp.Staged(self.draft, dp.NGram()),
            "specinfer": lambda: dp.SpecInfer([self.draft]),
            "foreign": self._foreign_draft,
            "medusa": lambda: dp.Medusa(self.heads),
            "ngram+draft": lambda: [dp.NGram(), dp.DraftModel(self.draft)],
            "auto": lambda: dp.Auto("ngram", "suffix", dp.DraftModel(self.draft)),
            "profile": lambda: str(self.profile),
        }
        return made.get(method, lambda: method)()

    def words(self, method: str) -> list[str]:
        """The same in a shell."""
        draft = ["--draft", self.draft]
        said: dict[str, list[str]] = {
            **dict.fromkeys(("draft", "staged", "specinfer", "ngram+draft"), draft),
            "foreign": ["--draft", str(self.foreign), "--any-tokenizer"],
            "medusa": ["--heads", self.heads],
        }
        if method == "auto":
            return draft
        if method == "profile":
            return ["--profile", str(self.profile)]
        return ["--method", method, *said.get(method, [])]

    @cached_property
    def heads(self) -> str:
        """Heads of the bundled target; for the encoder-decoder some that repeat its own head."""
        if not self.encodes:
            return bundled.BUNDLED
        config = self.base.runner.config
        width, made = config.d_model, self.folder / "heads"
        files.save(made, Heads(torch.zeros(2, 1, width, width), vocab_size=config.vocab_size))
        return str(made)

    @cached_property
    def foreign(self) -> Path:
        """The bundled draft under a permutation of its ids: another vocabulary, as good."""
        source, made = bundled.folder("draft"), self.folder / "foreign"
        if (made / "model.safetensors").exists():
            return made
        made.mkdir(parents=True, exist_ok=True)
        told = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
        strings = told["model"]["vocab"]
        fixed = {each["id"] for each in told["added_tokens"]}
        moving = [i for i in strings.values() if i not in fixed]
        shuffled = Random(5).sample(moving, len(moving))
        order = dict(zip(moving, shuffled, strict=True))
        told["model"]["vocab"] = {s: order.get(i, i) for s, i in strings.items()}
        (made / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
        for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            shutil.copy(source / name, made / name)
        weights = load_file(source / "model.safetensors")
        rows = torch.arange(weights["model.embed_tokens.weight"].shape[0])
        for old, new in order.items():
            rows[new] = old
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in weights:
                weights[name] = weights[name][rows].contiguous()
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        return made

    @cached_property
    def profile(self) -> Path:
        """A profile as `draftproof tune` would write it, of look-up and the draft together."""
        path = self.folder / f"profile-{self.kind}.json"
        draft = "mender-draft" if self.encodes else "draft"
        parts = Part("ngram"), Part("draft", model=str(bundled.folder(draft)))
        runner = self.base.runner
        told = {
            "draftproof_profile": profiles.FORMAT,
            "model": {"name": self.kind, "fingerprint": profiles.fingerprint(runner)},
            "machine": kept.description(runner),
            "costs": costs.of(runner).learnt(),
            "choice": Choice(parts).as_dict(),
        }
        path.write_text(json.dumps(told), encoding="utf-8")
        return path

    def _foreign_draft(self) -> dp.ForeignDraft:
        own = AutoTokenizer.from_pretrained(self.foreign)
        return dp.ForeignDraft(
            str(self.foreign), tokenizer=own, target_tokenizer=self.base.tokenizer
        )

    def _gguf(self) -> Path:
        path = self.folder / "bundled.Q4_1.gguf"
        return path if path.exists() else convert(bundled.BUNDLED, path, "int4")
