"""Configurations of the architectures that run on torch, from the fields of a GGUF file.

A file says less than a configuration does. What it leaves out is what llama.cpp takes for it.
Their classes are imported when one is made: each brings seconds of transformers' own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import transformers
from transformers import PreTrainedConfig

from draftproof.gguf.fields import MOST, number, rms_epsilon, rope, size
from draftproof.gguf.names import LONG, SHORT
from draftproof.gguf.reader import File

Make = Callable[[File, dict[str, Any], int], PreTrainedConfig]
STARCODER2_WINDOW = 4096  # of all published ones; no file says it
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # of Gemma 2


def gemma(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    return transformers.GemmaConfig(
        head_dim=width, rope_parameters=rope(file), rms_norm_eps=rms_epsilon(file), **sizes
    )


def gemma2(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    caps: dict[str, Any] = {
        name: number(file, f"{{arch}}.{name}", cap) for name, cap in CAPS.items()
    }
    return transformers.Gemma2Config(
        head_dim=width,
        rope_parameters=rope(file),
        query_pre_attn_scalar=_scaled_by(file, sizes, width, layers_of_27b=46),
        sliding_window=size(file, "{arch}.attention.sliding_window", 4096),
        **caps,
        rms_norm_eps=rms_epsilon(file),
        **sizes,
    )


def gemma3(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    window = size(file, "{arch}.attention.sliding_window", MOST)
    local = number(file, "{arch}.rope.freq_base_swa", 10000.0)
    capped = bool(file.fields.get("gemma3.final_logit_softcapping"))
    whole = ["full_attention"] * sizes["num_hidden_layers"]
    return transformers.Gemma3TextConfig(
        head_dim=width,
        rope_parameters={
            "full_attention": rope(file),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        query_pre_attn_scalar=_scaled_by(file, sizes, width, layers_of_27b=62),
        sliding_window=window,
        layer_types=whole if window == MOST else None,
        final_logit_softcapping=number(file, "{arch}.final_logit_softcapping") if capped else None,
        rms_norm_eps=rms_epsilon(file),
        **sizes,
    )


def phi3(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    window = file.fields.get("phi3.attention.sliding_window")
    if type(window) is not int or not 0 <= window <= MOST:
        raise ValueError(
            f"{file.path} does not say how far its tokens see (phi3.attention.sliding_window), as "
            "old files do not: get a newer one"
        )
    length = size(
        file, "{arch}.rope.scaling.original_context_length", sizes["max_position_embeddings"]
    )
    turning = _partly(file, width)
    if LONG in file.tensors or SHORT in file.tensors:
        turning |= {
            "rope_type": "longrope",
            "original_max_position_embeddings": length,
            "attention_factor": number(file, "{arch}.rope.scaling.attn_factor"),
            "long_factor": _factors(file, LONG),
            "short_factor": _factors(file, SHORT),
        }
    elif number(file, "{arch}.rope.scaling.attn_factor", 1.0) != 1:
        raise ValueError(f"{file.path} scales its attention, and lacks {SHORT}: it is damaged")
    return transformers.Phi3Config(
        rope_parameters=turning,
        original_max_position_embeddings=length,
        sliding_window=window or None,
        rms_norm_eps=rms_epsilon(file),
        **sizes,
    )


def starcoder2(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    # Longer texts would need the window, which is not in the file.
    sizes["max_position_embeddings"] = min(sizes["max_position_embeddings"], STARCODER2_WINDOW)
    return transformers.Starcoder2Config(
        rope_parameters=rope(file),
        norm_epsilon=_epsilon(file),
        use_bias="blk.0.attn_q.bias" in file.tensors,
        **sizes,
    )


def gpt2(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    known = {name: sizes[name] for name in ("vocab_size", "tie_word_embeddings", "architectures")}
    return transformers.GPT2Config(
        n_embd=sizes["hidden_size"],
        n_layer=sizes["num_hidden_layers"],
        n_head=sizes["num_attention_heads"],
        n_inner=sizes["intermediate_size"],
        n_positions=sizes["max_position_embeddings"],
        layer_norm_epsilon=_epsilon(file),
        bos_token_id=sizes["bos_token_id"],
        eos_token_id=sizes["eos_token_id"],
        **known,
    )


MAKE: Mapping[str, tuple[str, Make]] = {
    "gemma": ("GemmaForCausalLM", gemma),
    "gemma2": ("Gemma2ForCausalLM", gemma2),
    "gemma3": ("Gemma3ForCausalLM", gemma3),
    "phi3": ("Phi3ForCausalLM", phi3),
    "starcoder2": ("Starcoder2ForCausalLM", starcoder2),
    "gpt2": ("GPT2LMHeadModel", gpt2),
}
PARTLY = ("phi3",)  # rotates a part of each head, or may
EVENLY = ("phi3", "starcoder2", "gpt2")  # whose heads have all numbers of a token between them


def configuration(file: File, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    """sizes: what all architectures have, as transformers calls it. width: of a head.

    Raises `ValueError`, in one sentence.
    """
    name, make = MAKE[file.architecture]
    try:
        return make(file, {**sizes, "architectures": [name], "pad_token_id": None}, width)
    except ValueError:
        raise
    except Exception as error:  # whatever a configuration's own checks have against its sizes
        reason = " ".join(str(error).split())
        raise ValueError(f"{file.path}: its fields make no model, {reason}") from error


def _epsilon(file: File) -> float:
    return number(file, "{arch}.attention.layer_norm_epsilon")


def _scaled_by(file: File, sizes: dict[str, Any], width: int, layers_of_27b: int) -> int:
    """What scores are divided by the root of: no file says it, and the largest model differs."""
    if sizes["num_hidden_layers"] != layers_of_27b:
        return width
    return int(sizes["hidden_size"] // sizes["num_attention_heads"])


def _partly(file: File, width: int) -> dict[str, Any]:
    """Rotary embedding of the first elements of each head."""
    count = size(file, "{arch}.rope.dimension_count", width)
    part = count / width
    if int(width * part) < count:  # what transformers computes from it
        part = math.nextafter(part, 2.0)
    return {**rope(file), "partial_rotary_factor": part}


def _factors(file: File, name: str) -> list[float]:
    stored = file.tensors.get(name)
    if stored is None or stored.kind != "F32" or len(stored.shape) != 1:
        raise ValueError(f"{file.path}: {name} is missing, or not as it should be: damaged")
    found: list[float] = stored.data.view(np.float32).tolist()
    return found
