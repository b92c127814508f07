"""Encoder-decoders with random weights, in float64: a target and a smaller draft of each family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

V = 61
T5: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "initializer_factor": 3.0,
    "decoder_start_token_id": 0,
}
BART: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 96,
    "dropout": 0.0,
    "init_std": 0.6,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,  # else a random model repeats what it read
}


def _t5(name: str, layers: int, **more: Any) -> PreTrainedModel:
    options = {**T5, "num_layers": layers, "num_decoder_layers": layers, **more}
    return _of(name, options)


def _bart(name: str, layers: int, **more: Any) -> PreTrainedModel:
    return _of(name, {**BART, "encoder_layers": layers, "decoder_layers": layers, **more})


def _of(name: str, options: dict[str, Any]) -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(**options)
    kind = "MTModel" if name == "Marian" else "ForConditionalGeneration"
    made: PreTrainedModel = getattr(transformers, name + kind)(config)
    return made


FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "T5": partial(_t5, "T5"),
    "Flan-T5": partial(_t5, "T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "MT5": partial(_t5, "MT5"),
    "UMT5": partial(_t5, "UMT5"),
    "LongT5": partial(_t5, "LongT5"),
    "BART": partial(_bart, "Bart"),
    "mBART": partial(_bart, "MBart"),
    "Pegasus": partial(_bart, "Pegasus"),
    "Marian": partial(_bart, "Marian"),
    "M2M100": partial(_bart, "M2M100"),
    "PLBart": partial(_bart, "PLBart", scale_embedding=False),
    "Blenderbot": partial(_bart, "Blenderbot"),
    "BlenderbotSmall": partial(_bart, "BlenderbotSmall"),
}
REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "Switch": (lambda: _t5("SwitchTransformers", 2), "bounded number of rows"),
    "LED": (lambda: _bart("LED", 2), "attention interface"),
    "BigBird": (lambda: _bart("BigBirdPegasus", 2), "random parts"),
    "PegasusX": (lambda: _bart("PegasusX", 2), "cannot be run packed"),
    "Whisper": (lambda: _bart("Whisper", 2, num_mel_bins=8), "input_features"),
}


@cache
def model(family: str, layers: int = 2, seed: int = 0) -> PreTrainedModel:
    """Of FAMILIES; nobody changes it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = FAMILIES[family](layers).double().eval()
        if (bias := getattr(made, "final_logits_bias", None)) is not None:
            bias.normal_()  # zeros would hide that it is left out
        # Positions that are learnt have the spread of everything else; those of a table have 1.
    return made


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Of 3 to 14 tokens, some of one length, none of them padding or an end."""
    rng = Random(seed)
    sizes = [rng.choice([3, 6, 6, 9, 14]) for _ in range(count)]
    return [[rng.randrange(3, V) for _ in range(size)] for size in sizes]


def own(made: PreTrainedModel, prompt: list[int], new: int, **options: Any) -> list[int]:
    """What transformers writes, greedily: the tokens behind those that the decoder starts from."""
    given = torch.tensor([prompt])
    # A mask of its own: transformers would take token ids that are padding's for padding.
    options = {"attention_mask": torch.ones_like(given), "num_beams": 1, **options}
    out: Any = made.generate(given, max_new_tokens=new, do_sample=False, **options)
    start = options.get("decoder_input_ids")
    begin = 1 if start is None else start.shape[1] + int(start[0, 0] != out[0, 0])
    return list(map(int, out[0, begin:]))
