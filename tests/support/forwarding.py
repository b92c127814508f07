"""Models of every architecture, and rows compared with the model's own passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_oss import GptOssConfig

import tiny

V = tiny.VOCABULARY
CONFIGS: dict[str, Any] = {
    **tiny.CONFIGS,
    "gemma2": lambda: Gemma2Config(
        **tiny.COMMON,
        sliding_window=6,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=9.0,
        tie_word_embeddings=False,
        layer_types=[tiny.KINDS[i % 2] for i in range(4)],
    ),
    "gpt_oss": lambda: GptOssConfig(
        **tiny.COMMON,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=[tiny.KINDS[i % 2] for i in range(4)],
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=V,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def build(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for name, parameter in made.named_parameters():
            if "sinks" in name:
                torch.nn.init.normal_(parameter, std=1.0)
    return made.eval()


# Of transformers' own passes: experts know no float64, and eager attention's softmax is float32.
TOLERANCES = {"gpt_oss": 1e-3, "gemma2": 1e-4}


@cache
def target(name: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """float64 where the architecture has it."""
    config = CONFIGS[name]()
    if name == "gemma3":
        config.tie_word_embeddings = False  # else it repeats itself
    if dtype is None:
        dtype = torch.float32 if name in TOLERANCES else torch.float64
    # seed 0 of the experts has a router that nearly ties: half precision picks another expert
    return build(config, dtype, seed=int(name == "gpt_oss"))


@torch.no_grad()
def own(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """The model's own logits after the last token, (V,)."""
    ids = torch.tensor([list(tokens)])
    return model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1]


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max().item()
    assert error < tolerance, f"off by {error:.3g}"
