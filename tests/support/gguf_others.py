"""GGUF files of the architectures that run on torch, with the fields of llama.cpp's converter.

`benchmarks/peers/gguf_architectures.py` compares files that the converter itself wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    Phi3Config,
    PreTrainedModel,
    Starcoder2Config,
)

WINDOW = 9
SIZES: dict[str, Any] = {  # the comparison with the converter has larger ones
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
TWO, HEADS = {"num_hidden_layers": 2}, {"head_dim": 16}
GEMMA = {**HEADS, "query_pre_attn_scalar": 16, "sliding_window": WINDOW}
TURNING = {"rope_type": "default", "rope_theta": 500.0}
FACTORS = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0]
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS[::-1]}
PHI: dict[str, Any] = {**TWO, "original_max_position_embeddings": 64}
CONFIGS: dict[str, Any] = {
    "gemma": lambda: GemmaConfig(**SIZES, **TWO, **HEADS),
    "gemma2": lambda: Gemma2Config(**SIZES, **TWO, **GEMMA),
    "gemma2 27b": lambda: Gemma2Config(
        **SIZES, num_hidden_layers=46, head_dim=8, query_pre_attn_scalar=16, sliding_window=WINDOW
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES,
        **GEMMA,
        num_hidden_layers=7,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": TURNING,
        },
    ),
    "phi3": lambda: Phi3Config(**SIZES, **PHI, sliding_window=WINDOW, rope_parameters=TURNING),
    "phi3 partly": lambda: Phi3Config(
        **SIZES,
        **PHI,
        tie_word_embeddings=True,
        rope_parameters={**TURNING, "partial_rotary_factor": 0.5},
    ),
    "phi3 long": lambda: Phi3Config(
        **SIZES, **TWO, original_max_position_embeddings=48, rope_parameters=LONGROPE
    ),
    "starcoder2": lambda: Starcoder2Config(**SIZES, **TWO, rope_parameters=TURNING),
    "gpt2": lambda: GPT2Config(
        vocab_size=SIZES["vocab_size"],
        n_positions=SIZES["max_position_embeddings"],
        n_embd=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def model(name: str) -> PreTrainedModel:
    """A random one, whose norms and biases are random too."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        made: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name]())
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return made.eval()


def write(path: Path, made: PreTrainedModel, kind: str = "F32", **fields: Any) -> Path:
    """fields: further ones of the architecture, or None: left out."""
    config = made.config
    arch = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, arch)
    for name, value in {**_fields(config, arch), **fields}.items():
        if value is not None:
            adding = {float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
            adding.get(type(value), writer.add_uint32)(f"{arch}.{name}", value)
    for name, value in (getattr(config, "rope_parameters", None) or {}).items():
        if name in ("long_factor", "short_factor"):
            stored = f"rope_factors_{name.removesuffix('_factor')}.weight"
            writer.add_tensor(stored, np.array(value, np.float32))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, tensor in made.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.T
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        values = tensor.contiguous().numpy()
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(found, values)
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(found, gguf.quants.quantize(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _fields(config: Any, arch: str) -> dict[str, Any]:
    known = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
    }
    for name in ("norm_epsilon", "layer_norm_epsilon"):
        known["attention.layer_norm_epsilon"] = getattr(
            config, name, known.get("attention.layer_norm_epsilon")
        )
    known["attention.layer_norm_rms_epsilon"] = getattr(config, "rms_norm_eps", None)
    if arch.startswith("gemma"):
        known |= {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
        known["attention.sliding_window"] = getattr(config, "sliding_window", None)
    if arch == "gemma2":
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            known[name] = getattr(config, name)
    turning = getattr(config, "rope_parameters", None) or {}
    if arch == "gemma3":
        known["rope.freq_base_swa"] = turning["sliding_attention"]["rope_theta"]
        known["rope.scaling.type"] = "linear"
        known["rope.scaling.factor"] = turning["full_attention"]["factor"]
        turning = turning["full_attention"]
    known["rope.freq_base"] = turning.get("rope_theta")
    if arch == "phi3":
        width = config.hidden_size // config.num_attention_heads
        known["rope.dimension_count"] = int(width * turning["partial_rotary_factor"])
        known["rope.scaling.original_context_length"] = config.original_max_position_embeddings
        known["attention.sliding_window"] = config.sliding_window or 0
        if turning["rope_type"] == "longrope":
            more = np.log(config.max_position_embeddings / 48) / np.log(48)
            known["rope.scaling.attn_factor"] = float(np.sqrt(1 + more))
    return known
