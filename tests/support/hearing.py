"""Models that hear, with random weights, in float64, and audio for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from encoders import LIKE_BART, V

RATE = 16_000
OPTIONS = {**LIKE_BART, "max_target_positions": 96, "decoder_start_token_id": 3}


def _whisper(layers: int) -> PreTrainedModel:
    """Hears 0.4 seconds: 40 frames, 20 positions."""
    depth = {"encoder_layers": layers, "decoder_layers": layers}
    options = {**OPTIONS, **depth, "num_mel_bins": 8, "max_source_positions": 20}
    config = transformers.WhisperConfig(
        **options, suppress_tokens=[5, 6], begin_suppress_tokens=[7, 2]
    )
    return transformers.WhisperForConditionalGeneration(config)


def _speech_to_text(layers: int) -> PreTrainedModel:
    depth = {"encoder_layers": layers, "decoder_layers": layers, "conv_channels": 16}
    options = {**OPTIONS, **depth, "input_feat_per_channel": 8, "max_source_positions": 200}
    return transformers.Speech2TextForConditionalGeneration(
        transformers.Speech2TextConfig(**options)
    )


def _moonshine(layers: int) -> PreTrainedModel:
    config = transformers.MoonshineConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=48,
        encoder_num_hidden_layers=layers,
        decoder_num_hidden_layers=layers,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        initializer_range=0.6,
        max_position_embeddings=96,
        pad_token_id=1,
        eos_token_id=2,
        bos_token_id=3,
        decoder_start_token_id=3,
        tie_word_embeddings=False,
    )
    return transformers.MoonshineForConditionalGeneration(config)


FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "Whisper": _whisper,
    "Speech2Text": _speech_to_text,
    "Moonshine": _moonshine,
}


@cache
def model(family: str, layers: int = 2, seed: int = 0) -> PreTrainedModel:
    """Of FAMILIES; nobody changes it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FAMILIES[family](layers).double().eval()


def name_of(family: str) -> str:
    return str(model(family).main_input_name)


def features(family: str, count: int) -> list[Tensor]:
    """Of as many inputs, some of one length, without a batch."""
    noise = torch.Generator().manual_seed(4)
    made = []
    for number in range(count):
        size = (24, 40, 40, 56)[number % 4]
        shapes = {"Whisper": (8, 40), "Speech2Text": (size, 8), "Moonshine": (size * 100,)}
        made.append(2 * torch.randn(shapes[family], generator=noise, dtype=torch.float64))
    return made


def own(family: str, heard: Tensor, new: int, **options: Any) -> list[int]:
    """What transformers writes, greedily, of one input: the tokens behind those it starts from."""
    made: Any = model(family)
    options = {"max_new_tokens": new, "do_sample": False, "num_beams": 1, **options}
    if family == "Whisper":
        options |= {"force_unique_generate_call": True, "return_dict_in_generate": True}
        out = made.generate(heard[None], **options).sequences[0].tolist()
        return out[-new:] if 2 not in out else out[out.index(3) + 1 :]
    return list(map(int, made.generate(heard[None], **options)[0, 1:]))
