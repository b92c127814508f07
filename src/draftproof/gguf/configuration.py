"""From a GGUF file's fields to a configuration by transformers' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from draftproof.configurations import LlamaConfig, Qwen2Config, Qwen3Config
from draftproof.gguf import others
from draftproof.gguf.fields import ends, refuse_unread, rms_epsilon, rope, size
from draftproof.gguf.names import EMBEDDINGS, HEAD, TOP
from draftproof.gguf.reader import File

CONFIGS: Mapping[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Why others are refused; of those that are in no list nobody has looked.
RECURRENT = "has layers whose state cannot be rolled back"
ROUTED = "is a mixture of experts, which would lie in memory as floating-point numbers"
REASONS = {
    **dict.fromkeys(
        ("mamba", "mamba2", "lfm2", "qwen35", "qwen3next", "rwkv7", "jamba"), RECURRENT
    ),
    **dict.fromkeys(("qwen2moe", "qwen3moe", "qwen35moe", "gpt-oss", "minimax-m2"), ROUTED),
    **dict.fromkeys(("t5", "t5encoder", "bert", "nomic-bert"), "is no decoder-only language model"),
    **dict.fromkeys(("falcon", "bloom", "mpt"), "does not use transformers' attention interface"),
    **dict.fromkeys(("stablelm", "nemotron"), "hides from its attention which tokens a pass has"),
    **dict.fromkeys(("gemma3n", "gemma4"), "was not compared with its model"),
    "deci": "has layers of different kinds",
}


def configuration(file: File) -> PreTrainedConfig:
    """The model's configuration. Raises `ValueError` for what is not supported, or makes no sense.

    Rotary factors of Llama 3 are in a tensor and not in here.
    """
    architecture = file.architecture
    if architecture not in CONFIGS and architecture not in others.MAKE:
        reason = REASONS.get(architecture, "is not one of those that were compared")
        raise ValueError(
            f"{file.path} is of architecture {architecture!r}, which {reason}: of GGUF files "
            f"{', '.join((*CONFIGS, *others.MAKE))} are read; give the hub id of the model"
        )
    if file.fields.get(f"{architecture}.expert_count"):
        raise ValueError(f"{file.path} is a mixture of experts, which is not read from GGUF")
    refuse_unread(file)
    hidden = size(file, "{arch}.embedding_length")
    heads = size(file, "{arch}.attention.head_count")
    width = size(file, "{arch}.attention.key_length", hidden // heads)
    if width * heads != hidden and architecture in others.EVENLY:
        raise ValueError(f"{file.path}: {heads} heads of {width} do not make {hidden}: damaged")
    if size(file, "{arch}.attention.value_length", width) != width:
        raise ValueError(f"{file.path}: keys and values of different widths are not supported")
    rotated = size(file, "{arch}.rope.dimension_count", width)
    if rotated != width and architecture not in others.PARTLY:
        raise ValueError(f"{file.path}: heads of which only a part is rotated are not supported")
    if rotated > width or rotated % 2:
        raise ValueError(f"{file.path}: {rotated} numbers of {width} cannot be rotated: damaged")
    embeddings = file.tensors.get(TOP[EMBEDDINGS])
    if embeddings is None or len(embeddings.shape) != 2:
        raise ValueError(f"{file.path} has no {TOP[EMBEDDINGS]}: it is a vocabulary, or damaged")
    layers = size(file, "{arch}.block_count")
    last = f"blk.{layers - 1}.attn_norm.weight"
    if last not in file.tensors or layers > len(file.tensors):
        raise ValueError(f"{file.path} lacks {last}: it is damaged, or of another kind")
    sizes: dict[str, Any] = {
        "vocab_size": embeddings.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": size(file, "{arch}.attention.head_count_kv", heads),
        "intermediate_size": size(file, "{arch}.feed_forward_length"),
        "max_position_embeddings": size(file, "{arch}.context_length"),
        "tie_word_embeddings": TOP[HEAD] not in file.tensors,
        **ends(file),
    }
    try:
        config = made(file, architecture, sizes, width)
    except StrictDataclassError as error:
        raise ValueError(f"{file.path} is damaged: {error.__cause__ or error}") from error
    config._name_or_path = str(file.path)
    return config


def made(file: File, architecture: str, sizes: dict[str, Any], width: int) -> PreTrainedConfig:
    """transformers' configuration, which has rules of its own about numbers that fit together."""
    if architecture in others.MAKE:
        return others.configuration(file, sizes, width)
    bias = {"attention_bias": "blk.0.attn_q.bias" in file.tensors}
    config: PreTrainedConfig = CONFIGS[architecture](
        architectures=[CLASSES[architecture]],
        head_dim=width,
        rms_norm_eps=rms_epsilon(file),
        rope_parameters=rope(file),
        use_sliding_window=False,
        **({} if architecture == "qwen2" else bias),
        **sizes,
    )
    return config
