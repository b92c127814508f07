"""A small model made as dear as a big one, writing the same text: `inflate(model, like=...)`.

Whether speculation pays must be measured on text that is worth something, with passes that cost
something. A small trained model has the first, a random model of a real shape the second, and
surgery gives both: further layers, heads and feed-forward units whose output projections are zero.
They are read and multiplied in every pass and change nothing. Decoding waits for weights, so cost
is counted in bytes of weights that a pass over one token reads. `python benchmarks/inflation.py`
measures how well that holds.

Hidden size and vocabulary stay: a wider stream would change the mean in every norm. Knows the
module names of Llama-like models; changes no model that it is given.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {  # from their published configurations
    "Qwen3-0.6B": {**QWEN3, "hidden_size": 1024, "intermediate_size": 3072},
    "Qwen3-1.7B": {**QWEN3, "hidden_size": 2048, "intermediate_size": 6144},
    "Llama-3.2-1B": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
}
UNIT = 32  # the feed-forward grows by whole vectors of every kernel


def inflate(
    model: PreTrainedModel, like: str | Path | PreTrainedConfig = "Qwen3-0.6B", share: float = 1.0
) -> PreTrainedModel:
    """A new model with the logits of `model` and the cost of `like`, times `share`.

    like: a name in SHAPES, a hub id, a folder, or a configuration. Same type, device, tokenizer
    and generation settings as `model`, which stays as it is. Logits agree up to the rounding of
    longer sums. Raises `ValueError` for a model or a shape that is not Llama-like, a model whose
    layers were changed after loading, and a shape that is smaller than the model.
    """
    name = type(model).__name__
    if type(model) not in MODELS:
        known = ", ".join(kind.__name__ for kind in MODELS)
        raise ValueError(f"{name} is not a model whose layers can be inflated: use one of {known}")
    with torch.device("meta"):
        stock = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=model.dtype)
    own = {n: weight.shape for n, weight in model.named_parameters()}
    if own != {n: weight.shape for n, weight in stock.named_parameters()}:
        raise ValueError(
            f"{name} was changed after loading (adapters, quantisation), and only plain weights "
            "can be inflated: merge the adapters or load it unquantised"
        )
    config = shape_like(model.config, like, share)
    with torch.device("meta"):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    made.to_empty(device=model.device).tie_weights()
    _fill(made, model)
    # Its buffers are in no state dict, and `to_empty` has emptied them.
    made.model.rotary_emb = copy.deepcopy(model.get_submodule("model.rotary_emb"))
    made.model.rotary_emb.config = made.config
    made.generation_config = copy.deepcopy(model.generation_config)
    inflated: PreTrainedModel = made.train(model.training)
    return inflated


def cost_bytes(config: PreTrainedConfig, dtype: torch.dtype | None = None) -> int:
    """Bytes of weights that a pass over one token reads: layers and head, not the embedding.

    In `dtype`, or else the configuration's own.
    """
    with torch.device("meta"):
        kind: Any = dtype or config.dtype or torch.float32
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=kind)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total: int = sum(weight.nbytes for weight in model.parameters())  # a tied one once
    return total if head is embedding else total - embedding.nbytes


def shape_like(
    config: PreTrainedConfig, like: str | Path | PreTrainedConfig, share: float = 1.0
) -> PreTrainedConfig:
    """`config` with more layers, heads and units, so that its cost is that of `like`, x `share`.

    Depth and the width of keys, values and queries are those of `like`, in heads of the model's
    own size and the grouping of `like`; with a share below one the depth shrinks first. The
    feed-forward takes the rest. Raises `ValueError` as `inflate` does.
    """
    if not 0 < share < math.inf:
        raise ValueError(f"share is {share}, but must be finite and > 0")
    shape, made = published(like), copy.deepcopy(config)
    dim = _head_dim(config)
    depth = shape.num_hidden_layers * share
    layers = max(config.num_hidden_layers, round(depth), 1)
    # Where the model has more layers than that, each is as much narrower.
    width = shape.num_key_value_heads * _head_dim(shape) * min(1.0, depth / layers)
    group = shape.num_attention_heads // shape.num_key_value_heads
    heads = max(config.num_key_value_heads * _copies(config, group), math.ceil(width / dim))
    # LlamaConfig demands it when a model is saved; what is too wide the feed-forward gives back.
    whole = (n for n in range(heads, 2 * heads) if config.hidden_size % (n * group) == 0)
    made.num_key_value_heads = next(whole, heads)
    made.num_attention_heads = made.num_key_value_heads * group
    made.head_dim = dim
    made.num_hidden_layers = layers
    if kinds := getattr(config, "layer_types", None):
        made.layer_types = [*kinds, *["full_attention"] * (layers - len(kinds))]
    kind = torch.float32  # any, the same for both
    target, so_far = share * cost_bytes(shape, kind), cost_bytes(made, kind)
    if so_far > target:
        named = like if isinstance(like, str | Path) else "the given shape"
        raise ValueError(
            f"{share:g} times {named} is {target / 4e6:.4g} million weights per token, and the "
            f"model with these layers and heads reads {so_far / 4e6:.4g}: name a larger shape"
        )
    unit = 3 * config.hidden_size + 2 * bool(getattr(config, "mlp_bias", False))
    grow = (target - so_far) / (layers * unit * kind.itemsize)
    made.intermediate_size += UNIT * round(grow / UNIT)
    return made


def published(like: str | Path | PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of a shape by name, id or folder; `ValueError` if it cannot be given."""
    shape = like
    if not isinstance(shape, PreTrainedConfig):
        try:
            known = SHAPES.get(str(like))
            found = AutoConfig.for_model(**known) if known else AutoConfig.from_pretrained(like)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"no shape {str(like)!r}: name {', '.join(SHAPES)}, a hub id or a folder"
            ) from error
        shape = found
    kinds = [str(getattr(kind.config_class, "model_type", "")) for kind in MODELS]
    if shape.model_type not in kinds:
        raise ValueError(
            f"the shape of {shape.model_type} cannot be given: use one of {', '.join(kinds)}"
        )
    return shape


def _head_dim(config: Any) -> int:
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def _copies(config: Any, group: int) -> int:
    """Heads of keys that replace one of the model's, where a head serves only `group` queries."""
    return int(math.ceil(config.num_attention_heads / config.num_key_value_heads / group))


@torch.no_grad()
def _fill(made: PreTrainedModel, model: PreTrainedModel) -> None:
    """Write every weight of `made`: the model's own, zeros behind it, and what is only read.

    The last are the same in all layers: what matters is that they are read, and a draw for each
    would take minutes. Zeros are written, not left to the allocator, whose untouched pages are all
    one page and cost nothing to read.
    """
    source, noise = dict(model.named_parameters()), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(0)
    for name, weight in made.named_parameters():
        *path, part, leaf = name.split(".")
        if "layers" not in path:  # embedding, last norm, head
            weight.copy_(source[name])
            continue
        if part.endswith("norm"):
            weight.fill_(1.0)
        elif part in ("o_proj", "down_proj"):
            weight.zero_()
        else:
            key = f"{part}.{leaf}"
            if key not in noise:
                drawn = torch.empty(weight.shape).normal_(0.0, 0.02, generator=generator)
                noise[key] = drawn.to(weight.device, weight.dtype)
            weight.copy_(noise[key])
        if name in source:
            _place(part, weight, source[name], made.config, model.config)


def _place(part: str, weight: Tensor, own: Tensor, after: Any, before: Any) -> None:
    """Write the weight or bias `own` of module `part` of a layer into the larger `weight`.

    A head of keys serves the queries of one group. Where groups shrink, a head of keys is repeated
    and each copy serves the next part of its queries; from groups of three to groups of two:

        before  k0: q0 q1 q2 | k1: q3 q4 q5
        after   k0: q0 q1 | k0: q2 - | k1: q3 q4 | k1: q5 - | -: - - | ...
    """
    heads = (-1, after.head_dim)
    if part == "q_proj":
        weight.unflatten(0, heads)[_queries(after, before)] = own.unflatten(0, heads)
    elif part in ("k_proj", "v_proj"):
        copies = _copies(before, after.num_attention_heads // after.num_key_value_heads)
        keys = own.unflatten(0, heads).repeat_interleave(copies, 0)
        weight.unflatten(0, heads)[: len(keys)] = keys
    elif part == "o_proj" and own.ndim == 2:
        weight.unflatten(1, heads)[:, _queries(after, before)] = own.unflatten(1, heads)
    elif part == "down_proj" and own.ndim == 2:
        weight[:, : own.shape[1]] = own
    else:  # rows of the feed-forward; norms; biases of what is added to the stream
        weight[: len(own)] = own


def _queries(after: Any, before: Any) -> list[int]:
    """Where each of the model's own query heads stands."""
    group = after.num_attention_heads // after.num_key_value_heads
    each = before.num_attention_heads // before.num_key_value_heads
    copies = _copies(before, group)
    heads = (divmod(i, each) for i in range(before.num_attention_heads))
    return [(key * copies + i // group) * group + i % group for key, i in heads]
