"""Random models of 2 to 4 layers: small enough for fp64, odd enough to catch mistakes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

VOCABULARY = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # far from uniform: picks differ and rarely tie
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = ("full_attention", "sliding_attention")
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**COMMON),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen3": lambda: Qwen3Config(
        **COMMON,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=0,
        layer_types=[KINDS[i % 2] for i in range(4)],
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON,
        sliding_window=6,
        query_pre_attn_scalar=12,
        layer_types=[KINDS[i % 2] for i in range(4)],
    ),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=5),
}


def model(
    name: str = "llama",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    layers: int = COMMON["num_hidden_layers"],
    **changes: Any,
) -> PreTrainedModel:
    """A random model of the named architecture; `changes` go into its configuration.

    layers: of the four, how many; a pass costs by the layer.
    """
    config = CONFIGS[name]()
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return built.eval()


def relative(target: PreTrainedModel, share: float = 0.1, seed: int = 1) -> PreTrainedModel:
    """A draft: the target with every weight disturbed, so that it often agrees."""
    made = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += (share * spread * noise).to(parameter.dtype)
    return made.eval()


def other_size(vocabulary: int, like: PreTrainedModel, bias: float = 0.0) -> PreTrainedModel:
    """`like` with its vocabulary cut or padded; padding gets large logits when `bias`."""
    made = model("llama", dtype=torch.float64, vocab_size=vocabulary)
    states, own = like.state_dict(), made.state_dict()
    for name, value in states.items():
        rows = min(len(value), len(own[name])) if own[name].dim() else None
        own[name][:rows] = value[:rows]
    if bias:
        own["lm_head.weight"][len(states["lm_head.weight"]) :] = bias
    made.load_state_dict(own)
    return made.eval()
