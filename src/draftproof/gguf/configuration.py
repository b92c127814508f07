"""From a GGUF file's fields to a transformers configuration, and from names to names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from draftproof.gguf.reader import File

CONFIGS: Mapping[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TOP = {EMBEDDINGS: "token_embd.weight", "model.norm.weight": "output_norm.weight"}
TOP |= {HEAD: "output.weight"}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
IN_LAYERS = re.compile(rf"model\.layers\.(\d+)\.({'|'.join(IN_LAYER)})\.(weight|bias)")
FREQUENCIES = "rope_freqs.weight"  # what Llama 3 divides its rotary frequencies by
MOST = 1 << 24  # of any size that a configuration says


def configuration(file: File) -> PreTrainedConfig:
    """The model's configuration. Raises `ValueError` for what is not supported, or makes no sense.

    Its rotary factors are in a tensor and not in here.
    """
    architecture = file.architecture
    if architecture not in CONFIGS:
        raise ValueError(
            f"{file.path} is of architecture {architecture!r}, and of GGUF files "
            f"{', '.join(CONFIGS)} are read: give the hub id of the model it was made from"
        )
    if file.fields.get(f"{architecture}.expert_count"):
        raise ValueError(f"{file.path} is a mixture of experts, which is not read from GGUF")
    hidden = _size(file, "{arch}.embedding_length")
    heads = _size(file, "{arch}.attention.head_count")
    width = _size(file, "{arch}.attention.key_length", hidden // heads)
    if _size(file, "{arch}.attention.value_length", width) != width:
        raise ValueError(f"{file.path}: keys and values of different widths are not supported")
    if _size(file, "{arch}.rope.dimension_count", width) != width:
        raise ValueError(f"{file.path}: heads of which only a part is rotated are not supported")
    embeddings = file.tensors.get(TOP[EMBEDDINGS])
    if embeddings is None or len(embeddings.shape) != 2:
        raise ValueError(f"{file.path} has no {TOP[EMBEDDINGS]}: it is a vocabulary, or damaged")
    layers = _size(file, "{arch}.block_count")
    if (last := f"blk.{layers - 1}.attn_norm.weight") not in file.tensors:
        raise ValueError(f"{file.path} lacks {last}: it is damaged, or of another kind")
    bias = {"attention_bias": "blk.0.attn_q.bias" in file.tensors}
    config: PreTrainedConfig = CONFIGS[architecture](
        architectures=[CLASSES[architecture]],
        vocab_size=embeddings.shape[0],
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_size(file, "{arch}.attention.head_count_kv", heads),
        head_dim=width,
        intermediate_size=_size(file, "{arch}.feed_forward_length"),
        rms_norm_eps=float(file.field("{arch}.attention.layer_norm_rms_epsilon", float)),
        max_position_embeddings=_size(file, "{arch}.context_length"),
        rope_parameters=_rope(file),
        tie_word_embeddings=TOP[HEAD] not in file.tensors,
        use_sliding_window=False,
        **({} if architecture == "qwen2" else bias),
        **_ends(file),
    )
    config._name_or_path = str(file.path)
    return config


def stored_name(name: str) -> str:
    """What a GGUF file calls a tensor of transformers' name; of others: nothing in any file."""
    if name in TOP:
        return TOP[name]
    layer = IN_LAYERS.fullmatch(name)
    return f"blk.{layer[1]}.{IN_LAYER[layer[2]]}.{layer[3]}" if layer else ""


def _size(file: File, name: str, default: int | None = None) -> int:
    found: int = file.field(name, int, default)
    if not 0 < found <= MOST:
        raise ValueError(f"{file.path}: {name.replace('{arch}', file.architecture)} is {found}")
    return found


def _rope(file: File) -> dict[str, Any]:
    """As transformers has it."""
    base = float(file.field("{arch}.rope.freq_base", float, 10000.0))
    kind = file.field("{arch}.rope.scaling.type", str, "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": base}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"{file.path}: its rotary scaling is {kind!r}, which is not supported")
    factor = float(file.field("{arch}.rope.scaling.factor", float))
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    length = _size(file, "{arch}.rope.scaling.original_context_length")
    known = {"rope_type": "yarn", "rope_theta": base, "factor": factor}
    return known | {"original_max_position_embeddings": length}


def _ends(file: File) -> dict[str, Any]:
    """Ids of the tokens that begin and end a text; all that end one."""
    named = {
        name: file.fields.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos", "eot", "eom")
    }
    ends = [named[name] for name in ("eos", "eot", "eom") if isinstance(named[name], int)]
    return {"bos_token_id": named["bos"], "eos_token_id": sorted({*ends}) or None}
