"""A tiny random model of every causal architecture of the installed transformers.

Made generically: a field of the configuration that has a name of SMALL gets its value, here and
in every sub-configuration. What that does not fit is in CHANGES, one line per architecture.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

NAMES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WINDOW = 9  # longer than what the probe runs, shorter than what is tested: it binds unseen
LAYERS = 4
SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size": 48,
    "d_model": 48,
    "n_embd": 48,
    "embedding_size": 48,
    "word_embed_proj_dim": 48,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "n_layer": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_encoder_layers": LAYERS,
    "num_decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "is_decoder": True,
    "attention_chunk_size": WINDOW,
    "local_attention": WINDOW,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "index_topk": WINDOW,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "num_attention_heads": 4,
    "n_head": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rotary_dim": 8,
    "query_pre_attn_scalar": 12,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,  # far from uniform: picks differ and rarely tie
    "init_std": 0.25,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "max_window_layers": 2,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # compressed keys and values
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
CHANGES: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 99},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "granitemoehybrid": {"mamba_n_heads": 4, "layer_types": ["linear_attention", "attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "stablelm": {"partial_rotary_factor": 0.5},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


def small(kind: type[PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    """The configuration of this class with tiny sizes."""
    default = kind()
    known = {field.name for field in fields(kind)}
    made: dict[str, Any] = {}
    for name, value in SMALL.items():
        own = kind.attribute_map.get(name, name)
        if own in known:
            made[own] = value
    if "qk_rope_head_dim" in known:  # compressed keys and values: one of each for every head
        made.pop("head_dim", None)
        made["num_key_value_heads"] = made["num_attention_heads"]
    if "layer_types" in known and (types := default.layer_types):
        kinds = sorted(set(types))
        made["layer_types"] = [kinds[i % len(kinds)] for i in range(LAYERS)]
    for name in kind.sub_configs:
        sub = getattr(default, name, None)
        if sub is not None:
            made[name] = small(type(sub))
    return kind(**{**made, **changes})


def model(
    name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A random model of the architecture; raises whatever keeps it from being built."""
    config = small(CONFIG_MAPPING[name], **{**CHANGES.get(name, {}), **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return built.eval()
