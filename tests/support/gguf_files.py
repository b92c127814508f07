"""GGUF files of models that we make, written by the library of the format's makers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

import k_quants
import tiny

SIZES: dict[str, Any] = {  # multiples of 32, as blocks are
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
}


def model(kind: str, **changes: Any) -> PreTrainedModel:
    """A random model of an architecture that files have."""
    return tiny.model(kind, **{**SIZES, **changes})


def write(
    path: Path,
    made: PreTrainedModel,
    kind: str = "F32",
    tokenizer: Any = None,
    pre: str = "gpt-2",
    **fields: Any,
) -> Path:
    """A model as a file, matrices in the given type. fields: further ones, or None: left out."""
    config = made.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if tokenizer is not None:
        _vocabulary(writer, tokenizer, pre)
    for name, value in fields.items():
        adding = {int: writer.add_uint32, float: writer.add_float32}
        adding.get(type(value), writer.add_string)(name.replace("__", "."), value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, tensor in made.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = permuted(values, heads)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        _add(writer, stored, values, kind)
    factors = rope_factors(made)
    if factors is not None:
        _add(writer, "rope_freqs.weight", factors, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rope_factors(made: PreTrainedModel) -> NDArray[np.float32] | None:
    """What a file of Llama 3's rotary scaling says: how much slower than usual each one turns."""
    if made.config.rope_parameters["rope_type"] != "llama3":
        return None
    width, theta = made.config.head_dim, made.config.rope_parameters["rope_theta"]
    usual = theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    factors: NDArray[np.float32] = (usual / made.model.rotary_emb.inv_freq.numpy()).astype(
        "float32"
    )
    return factors


def permuted(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Halves of each head side by side, as llama.cpp's converter writes them."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


def iq4_nl(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks to the nearest, which the library does not write: a scale, places in a table."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1) / 127).astype(np.float16)[:, None]
    steps = blocks / np.maximum(scales.astype(np.float32), 1e-9)
    places = np.abs(steps[..., None] - IQ4).argmin(-1).astype(np.uint8)
    made = np.concatenate([scales.view(np.uint8), places[:, :16] | places[:, 16:] << 4], 1)
    return made.reshape(*values.shape[:-1], -1)


def _quantised(values: np.ndarray, kind: str) -> np.ndarray:
    """Blocks of a type; the library has no writers of K-quants and of IQ4_NL."""
    if kind.endswith("_K"):
        return k_quants.quantise(values, kind)
    if kind == "IQ4_NL":
        return iq4_nl(values)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])


def _add(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], kind: str) -> None:
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    else:
        number = gguf.GGMLQuantizationType[kind]
        data = _quantised(values, kind)
        writer.add_tensor(name, data, raw_dtype=number)


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: Any, pre: str) -> None:
    said = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {each["id"] for each in said["added_tokens"]}
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if at in special else gguf.TokenType.NORMAL
            for at in range(len(tokens))
        ]
    )
    writer.add_token_merges([" ".join(merge) for merge in said["model"]["merges"]])
    for name in ("bos", "eos", "unk", "pad"):
        at = getattr(tokenizer, f"{name}_token_id")
        if at is not None:
            getattr(writer, f"add_{name}_token_id")(at)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
