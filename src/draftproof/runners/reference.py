"""A pass of a model of Llama's shape in plain torch, a layer's weights in memory at a time.

What packed weights are compared with where transformers' own model would first have to be brought:
the same operations in the same precision. A test holds it to that model for every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from draftproof.runners.packed_formats import EMBEDDINGS, HEAD
from draftproof.runners.packing import head_dim, window_of
from draftproof.runners.weights import Weights


@torch.inference_mode()
def logits(weights: Weights, tokens: Sequence[int]) -> Tensor:
    """(T, V) of a text of T tokens, in float32."""
    config: Any = weights.config
    ids = torch.tensor(tokens)
    states = weights[f"{EMBEDDINGS}.weight"][ids].to(weights.dtype)  # (T, hidden)
    cos, sin = _turns(weights, len(ids))
    for layer in range(config.num_hidden_layers):
        at, window = f"model.layers.{layer}", window_of(config, layer)
        seen = _norm(weights, f"{at}.input_layernorm", states)
        states = states + _attended(weights, f"{at}.self_attn", seen, cos, sin, window)
        seen = _norm(weights, f"{at}.post_attention_layernorm", states)
        gate, up = (_times(weights, f"{at}.mlp.{name}_proj", seen) for name in ("gate", "up"))
        states = states + _times(weights, f"{at}.mlp.down_proj", F.silu(gate) * up)
    return _times(weights, HEAD, _norm(weights, "model.norm", states)).float()


def _turns(weights: Weights, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, head_dim)."""
    steps, scale = weights.rotary()
    angles = torch.outer(torch.arange(length).float(), steps.float()).repeat(1, 2)
    return (angles.cos() * scale).to(weights.dtype), (angles.sin() * scale).to(weights.dtype)


def _attended(
    weights: Weights, at: str, states: Tensor, cos: Tensor, sin: Tensor, window: int
) -> Tensor:
    config: Any = weights.config
    width, length = head_dim(config), len(states)
    query, key, value = (
        _times(weights, f"{at}.{name}_proj", states).view(length, -1, width) for name in "qkv"
    )  # (T, heads, head_dim)
    if f"{at}.q_norm.weight" in weights:
        query, key = _norm(weights, f"{at}.q_norm", query), _norm(weights, f"{at}.k_norm", key)
    query, key = (
        each * cos[:, None]
        + torch.cat((-each[..., width // 2 :], each[..., : width // 2]), -1) * sin[:, None]
        for each in (query, key)
    )
    apart = torch.arange(length)[:, None] - torch.arange(length)  # how far behind a key lies
    mask = (apart >= 0) & (apart < (window or length))
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1).transpose(0, 1) for each in (key, value))
    mixed = F.scaled_dot_product_attention(query.transpose(0, 1), key, value, attn_mask=mask)
    return _times(weights, f"{at}.o_proj", mixed.transpose(0, 1).reshape(length, -1))


def _norm(weights: Weights, path: str, states: Tensor) -> Tensor:
    numbers = states.float()
    spread = numbers.square().mean(-1, keepdim=True) + weights.config.rms_norm_eps
    evened: Tensor = (numbers * spread.rsqrt()).to(states.dtype)
    return weights[f"{path}.weight"].to(states.dtype) * evened


def _times(weights: Weights, path: str, states: Tensor) -> Tensor:
    bias = f"{path}.bias"
    added = weights[bias].to(states.dtype) if bias in weights else None
    return F.linear(states, weights[f"{path}.weight"].to(states.dtype), added)
