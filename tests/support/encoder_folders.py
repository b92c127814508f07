"""Encoder-decoders on disk, with a tokenizer of short words."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import transformers

from encoders import V, model

WORDS = ["<pad>", "<unk>", "</s>"] + [f"{a}{b}" for a in "bcdfgh" for b in ["", *"aeioulrst"]]
TEXTS = ["c b d c b", "ba bo du", "fa fe fi fo fu ga ge c b d c b d", "h ho ha"]


def tokenizer(folder: Path) -> None:
    """Words of a letter or two beside the model, as many as it has ids for."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)


def saved(folder: Path, family: str = "T5", layers: int = 2, seed: int = 0) -> Path:
    """A model of `encoders.FAMILIES`, in float32."""
    assert len(WORDS) >= V
    made = copy.deepcopy(model(family, layers, seed)).float()
    made.generation_config.eos_token_id = 2
    made.save_pretrained(folder)
    tokenizer(folder)
    return folder


def prompts(folder: Path, texts: list[str] = TEXTS) -> Path:
    """A file of prompts."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path
