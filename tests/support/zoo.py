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
    "ffn_hidden_size": 64,
    "dense_intermediate_size": 64,
    "dff": 64,
    "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_encoder_layers": LAYERS,
    "num_decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "is_decoder": True,
    "attention_chunk_size": WINDOW,
    "local_attention": 2 * WINDOW,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "index_topk": WINDOW,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rotary_dim": 8,
    "query_pre_attn_scalar": 12,
    "max_position_embeddings": 128,
    "max_seq_len": 128,
    "n_positions": 128,
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
HYBRID = ["linear_attention", "full_attention"] * 2
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 4, "attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 99},
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": {kind: PLAIN_ROPE for kind in ("full_attention", "sliding_attention")},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "dots3_note": {
        "vision_config": {
            "adapter_in_dim": 48,
            "adapter_out_dim": 48,
            "mlp_layer_types": ["dense"] * LAYERS,
        },
        "audio_config": {"adapter_input_size": 48, "adapter_out_dim": 48},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "granitemoehybrid": {"mamba_n_heads": 4, "layer_types": HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 4},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_embds_dim": [16, 32]},
    "stablelm": {"partial_rotary_factor": 0.5},
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"num_heads": 4},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
CHANGES["qwen4_exp"] = {"text_config": CHANGES["qwen4_exp_text"]}
NARROW = {f"swa_{name}": 4 for name in ("num_attention_heads", "num_key_value_heads")}
NARROW |= {f"swa_{name}": 16 for name in ("q_lora_rank", "kv_lora_rank", "head_dim", "v_head_dim")}
NARROW |= {"swa_qk_nope_head_dim": 8, "swa_qk_rope_head_dim": 8}
LONG = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # of an architecture: name -> what differs
    "bert-encoder": ("bert", {"is_decoder": False}),
    "dots3_note_text-dense": ("dots3_note_text", {"use_dsa": False, **NARROW}),
    "llama-dynamic": (
        "llama",
        {"rope_parameters": {**PLAIN_ROPE, "rope_type": "dynamic", "factor": 2.0}},
    ),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                **PLAIN_ROPE,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "minimax_m3-sparse": (
        "minimax_m3_vl_text",
        {
            "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        },
    ),
    "ministral3-scaled": (
        "ministral3",
        {
            "rope_parameters": {
                **PLAIN_ROPE,
                "llama_4_scaling_beta": 0.5,
                "original_max_position_embeddings": 8,
            }
        },
    ),
    "phi3-longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                **PLAIN_ROPE,
                "rope_type": "longrope",
                "short_factor": LONG,
                "long_factor": LONG[::-1],
            },
        },
    ),
    "phimoe-plain": ("phimoe", {"sliding_window": None}),
    "qwen2_moe-plain": (
        "qwen2_moe",
        {"use_sliding_window": False, "layer_types": ["full_attention"] * LAYERS},
    ),
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
        if kinds == ["full_attention"] and "sliding_window" in known:
            kinds.append("sliding_attention")
        made["layer_types"] = [kinds[i % len(kinds)] for i in range(LAYERS)]
    for name in kind.sub_configs:
        sub = getattr(default, name, None)
        if sub is not None:
            made[name] = small(type(sub), **changes.pop(name, {}))
    return kind(**{**made, **changes})


def model(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model of an architecture or a variant; raises what keeps it from being built."""
    name, changes = VARIANTS.get(name, (name, {}))
    config = small(CONFIG_MAPPING[name], **{**CHANGES.get(name, {}), **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
        built.set_attn_implementation("eager")  # as loading does
    built.eval()
    return built
