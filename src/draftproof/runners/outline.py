"""A model of Llama's shape of which there are no modules yet: what packing has to know of it.

Modules need the code of transformers' models, whose import takes longer than to pack a small one.
They are made, without weights, when something is asked for that only they have.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftproof import configurations

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Outline:
    """Goes for the model of a configuration of `configurations`; its tensors are in files."""

    device = torch.device("meta")

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype) -> None:
        self.config: Any = config
        self.dtype, self.name_or_path = dtype, config.name_or_path
        self.generation_config = GenerationConfig.from_model_config(config)
        self.inv_freq, self.attention_scaling = frequencies(config)

    @cached_property
    def modules_of_it(self) -> PreTrainedModel:
        """transformers' model, on the meta device but for its rotary embedding."""
        made: Any = modules(configurations.whole(self.config), self.dtype)
        made.model.rotary_emb.inv_freq = self.inv_freq
        made.generation_config = self.generation_config
        return made  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.modules_of_it(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of protocols, as copying's: not of the model
            raise AttributeError(name)
        return getattr(self.modules_of_it, name)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Of its tensors, by transformers' names: a head of its own included, tied or not."""
        config = self.config
        hidden, inside, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
        heads, keys = config.num_attention_heads, config.num_key_value_heads
        width = getattr(config, "head_dim", None) or hidden // heads
        qwen2 = config.model_type == "qwen2"  # which has biases, and none behind its attention
        attends = True if qwen2 else config.attention_bias
        matrices = {
            "self_attn.q_proj": (heads * width, hidden, attends),
            "self_attn.k_proj": (keys * width, hidden, attends),
            "self_attn.v_proj": (keys * width, hidden, attends),
            "self_attn.o_proj": (hidden, heads * width, attends and not qwen2),
            "mlp.gate_proj": (inside, hidden, biased := getattr(config, "mlp_bias", False)),
            "mlp.up_proj": (inside, hidden, biased),
            "mlp.down_proj": (hidden, inside, biased),
        }
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if config.model_type == "qwen3":
            norms |= {"self_attn.q_norm": width, "self_attn.k_norm": width}
        found = {"model.embed_tokens.weight": [vocabulary, hidden]}
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}"
            for path, (outputs, inputs, bias) in matrices.items():
                found[f"{at}.{path}.weight"] = [outputs, inputs]
                if bias:
                    found[f"{at}.{path}.bias"] = [outputs]
            found |= {f"{at}.{path}.weight": [size] for path, size in norms.items()}
        return found | {"model.norm.weight": [hidden], "lm_head.weight": [vocabulary, hidden]}


def outlined(config: Any, dtype: torch.dtype) -> Outline | PreTrainedModel:
    """A model without weights; its modules are there already where it is none of the known."""
    if type(config).__module__ == configurations.__name__:
        return Outline(config, dtype)
    return modules(config, dtype)


def modules(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' model without weights, but for what is computed (of the rotary embedding)."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if hasattr(getattr(model, "model", None), "rotary_emb"):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    model.eval()
    return model


def shapes_of(model: Outline | PreTrainedModel) -> dict[str, list[int]]:
    """Of all its tensors, by name."""
    if isinstance(model, Outline):
        return model.shapes
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def frequencies(config: Any) -> tuple[Tensor, float]:
    """As transformers' rotary embedding of these models: (head_dim / 2,), and their scaling."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        made: tuple[Tensor, float] = ROPE_INIT_FUNCTIONS[kind](config)
        return made
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    steps = torch.arange(0, width, 2, dtype=torch.float) / width
    return 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0
