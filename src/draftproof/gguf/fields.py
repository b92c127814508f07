"""Numbers of a GGUF file's fields that a configuration is made of, checked."""

from __future__ import annotations

import math
from typing import Any

from draftproof.gguf.reader import File

MOST = 1 << 24  # of any size that a configuration says
READ = {  # fields whose values are in the configuration, or change nothing
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "tensor_data_layout"),
    *("attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon"),
    *("attention.layer_norm_epsilon", "rope.freq_base", "rope.dimension_count"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scale_linear"),
    *("rope.scaling.finetuned", "mm.tokens_per_image", "pooling_type", "attention.causal"),
}
ALSO = {
    "gemma2": {
        *("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    },
    "gemma3": {"attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping"},
    "phi3": {"attention.sliding_window", "rope.scaling.attn_factor"},
}
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # of YaRN
ZERO = {"attention.sliding_window_pattern"}  # of which zero does not mean that there is none


def refuse_unread(file: File) -> None:
    """Raises `ValueError` for a field that may change what the model computes, and is not read."""
    prefix = f"{file.architecture}."
    said = {name.removeprefix(prefix) for name in file.fields if name.startswith(prefix)}
    unread = said - READ - ALSO.get(file.architecture, set())
    if unread := {name for name in unread if file.fields[prefix + name] or name in ZERO}:
        raise ValueError(
            f"{file.path} says {prefix}{min(unread)}, which is not read here and may change what "
            "it computes: give the hub id of the model it was made from"
        )
    if not file.field("{arch}.attention.causal", bool, True):
        raise ValueError(f"{file.path}: its tokens see what follows them, so it writes no text")


def size(file: File, name: str, default: int | None = None) -> int:
    """Raises `ValueError` for what is no size, or is missing without a default."""
    found: int = file.field(name, int, default)
    if not 0 < found <= MOST:
        raise ValueError(f"{file.path}: {name.replace('{arch}', file.architecture)} is {found}")
    return found


def number(file: File, name: str, default: float | None = None) -> float:
    """Raises `ValueError` for what is not above zero, or is missing without a default."""
    found = float(file.field(name, float, default))
    if not 0 < found < math.inf:
        raise ValueError(f"{file.path}: {name.replace('{arch}', file.architecture)} is {found}")
    return found


def rms_epsilon(file: File) -> float:
    return number(file, "{arch}.attention.layer_norm_rms_epsilon")


def rope(file: File) -> dict[str, Any]:
    """As transformers has it."""
    base = number(file, "{arch}.rope.freq_base", 10000.0)
    # A factor alone is linear scaling, as llama.cpp takes it; files were written with either name.
    names = [f"{file.architecture}.rope.{name}" for name in ("scaling.factor", "scale_linear")]
    name = next((name for name in names if name in file.fields), names[0])
    scaled = file.fields.get(name)
    kind = file.field("{arch}.rope.scaling.type", str, "linear" if scaled else "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": base}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"{file.path}: its rotary scaling is {kind!r}, which is not supported")
    known = {"rope_type": kind, "rope_theta": base, "factor": number(file, name)}
    if kind == "linear":
        return known
    known["original_max_position_embeddings"] = size(
        file, "{arch}.rope.scaling.original_context_length"
    )
    for beta, usual in BETAS.items():
        known[beta] = number(file, f"{{arch}}.rope.scaling.yarn_{beta}", usual)
    return known


def ends(file: File) -> dict[str, Any]:
    """Ids of the tokens that begin and end a text; all that end one."""
    named = {
        name: file.fields.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos", "eot", "eom")
    }
    ends = [named[name] for name in ("eos", "eot", "eom") if isinstance(named[name], int)]
    return {"bos_token_id": named["bos"], "eos_token_id": sorted({*ends}) or None}
