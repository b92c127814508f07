"""A target with padding, drafts whose embeddings have other rows than it, heads, profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny
from draftproof import bundled
from draftproof.heads import files
from draftproof.heads.module import Heads
from draftproof.profiles import Choice, Part, shape_of

TOKENIZER = AutoTokenizer.from_pretrained(bundled.folder("target"))
TOKENS = len(TOKENIZER)
ROWS = TOKENS + 40  # of the target, padding included
SIZES = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "max_position_embeddings": 256}


def saved(folder: Path, model: Any, tokenizer: Any = TOKENIZER) -> str:
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return str(folder)


def made(rows: int, **changes: Any) -> Any:
    return tiny.model(**{**SIZES, "vocab_size": rows, **changes})


def models(folder: Path) -> dict[str, str]:
    """Their folders by name."""
    target = made(ROWS)
    fewer, more = tiny.relative(target, 0.05), tiny.relative(target, 0.05)
    fewer.resize_token_embeddings(TOKENS - 8, mean_resizing=False)
    more.resize_token_embeddings(ROWS + 24, mean_resizing=False)
    tied = made(ROWS, tie_word_embeddings=True, max_position_embeddings=128)
    heads = Heads(0.1 * torch.randn(2, 1, 48, 48), None, None, vocab_size=ROWS, target="t")
    files.save(folder / "heads", heads)
    return {
        "target": saved(folder / "target", target),
        "fewer": saved(folder / "fewer", fewer),
        "more": saved(folder / "more", more),
        "tied": saved(folder / "tied", tied),
        "heads": str(folder / "heads"),
    }


def loaded(folder: str | Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def profile(folder: Path, target: str | None, *parts: Part, **changes: Any) -> str:
    """As `draftproof tune` writes one."""
    model: dict[str, Any] = {"name": "target", "place": target}
    if target is not None:
        config = loaded(target).config
        model["fingerprint"] = {"shape": shape_of(config), "says": []}
    choice = Choice(parts, decides=changes.pop("decides", False)).as_dict()
    file = folder / "profile.json"
    file.write_text(json.dumps({"draftproof_profile": 1, "choice": choice, "model": model}))
    return str(file)
