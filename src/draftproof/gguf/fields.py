"""Numbers of a GGUF file's fields that a configuration is made of, checked."""

from __future__ import annotations

from typing import Any

from draftproof.gguf.reader import File

MOST = 1 << 24  # of any size that a configuration says


def size(file: File, name: str, default: int | None = None) -> int:
    """Raises `ValueError` for what is no size, or is missing without a default."""
    found: int = file.field(name, int, default)
    if not 0 < found <= MOST:
        raise ValueError(f"{file.path}: {name.replace('{arch}', file.architecture)} is {found}")
    return found


def rms_epsilon(file: File) -> float:
    return float(file.field("{arch}.attention.layer_norm_rms_epsilon", float))


def rope(file: File) -> dict[str, Any]:
    """As transformers has it."""
    base = float(file.field("{arch}.rope.freq_base", float, 10000.0))
    # A factor alone is linear scaling, as llama.cpp takes it.
    scaled = file.fields.get(f"{file.architecture}.rope.scaling.factor")
    kind = file.field("{arch}.rope.scaling.type", str, "linear" if scaled else "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": base}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"{file.path}: its rotary scaling is {kind!r}, which is not supported")
    factor = float(file.field("{arch}.rope.scaling.factor", float))
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    length = size(file, "{arch}.rope.scaling.original_context_length")
    known = {"rope_type": "yarn", "rope_theta": base, "factor": factor}
    return known | {"original_max_position_embeddings": length}


def ends(file: File) -> dict[str, Any]:
    """Ids of the tokens that begin and end a text; all that end one."""
    named = {
        name: file.fields.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos", "eot", "eom")
    }
    ends = [named[name] for name in ("eos", "eot", "eom") if isinstance(named[name], int)]
    return {"bos_token_id": named["bos"], "eos_token_id": sorted({*ends}) or None}
