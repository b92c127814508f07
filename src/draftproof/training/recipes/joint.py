"""Medusa-2: the target with what learns beside the heads, and what it is afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draftproof.out_folders import writing
from draftproof.training.recipes.text import Text
from draftproof.training.trainer import Batch

LORA: dict[str, Any] = {"r": 32, "lora_alpha": 16, "lora_dropout": 0.05}  # the paper's


def learning(target: Any, full: bool, seed: int) -> Any:
    """The target with adapters that learn, random by `seed`; or (full) all of it."""
    if full:
        return target.float().requires_grad_(True)
    try:
        import peft
    except ImportError:
        raise ValueError(
            "adapters need peft: pip install 'draftproof[train]', or add --full"
        ) from None
    with torch.random.fork_rng():  # peft draws from no other
        torch.manual_seed(seed)
        return peft.get_peft_model(target, peft.LoraConfig(target_modules="all-linear", **LORA))


def learnt(target: Any, folder: Path, tokenizer: Any) -> Any:
    """The target as it is after training, written to `folder` in its own precision."""
    merged = target.merge_and_unload() if hasattr(target, "merge_and_unload") else target
    merged = merged.to(getattr(merged.config, "dtype", None) or torch.float32)
    with writing(folder):
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return merged.eval()


@torch.no_grad()
def loss(target: Any, held_out: Sequence[Batch]) -> float:
    """Of the target itself on the data's held-out text, nats per token: its learning costs that."""
    return round(Text(target, held_out).evaluate(target.device)["loss"], 4)
