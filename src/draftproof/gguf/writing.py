"""A model as a GGUF file, tensor by tensor: it never lies in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.gguf.configuration import CLASSES
from draftproof.gguf.fields import BETAS
from draftproof.gguf.names import EMBEDDINGS, FREQUENCIES, HEAD, stored_name

# What a precision is called there; norms and biases stay float32, as every reader wants them.
KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_1"}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NUMBERS = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 7, "BF16": 32}  # of the whole file, by its type
# Of YaRN what no field says as transformers means it, and the value that need not be said.
UNWRITTEN = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True}

# Blocks of a matrix, (rows, bytes of a row), by the name of their type.
Rounded = Callable[[Tensor, str], NDArray[np.uint8]]


def kind_of(name: str, shape: tuple[int, ...], precision: str) -> str:
    """The type of a tensor. int4: but for the head and embeddings, which tell tokens apart."""
    kind = KINDS[precision]
    if len(shape) == 1:
        return "F32"
    if kind == "Q4_1" and name in (HEAD, EMBEDDINGS):
        kind = "Q8_0"
    return kind


def write(
    path: Path,
    config: Any,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], Tensor],
    precision: str,
    rounded: Rounded,
    vocabulary: Mapping[str, Any],
    told: Callable[[str, float], None],
) -> None:
    """Write all tensors of `shapes`, by transformers' names, and fields that tell what they are.

    told: of the tensor that is written, and the share that is done. Raises `ValueError`, in one
    sentence, for a model that such files cannot hold.
    """
    architecture = architecture_of(config)
    writer = gguf.GGUFWriter(None, architecture)
    for name, value in {**_fields(config, architecture, precision), **vocabulary}.items():
        _add(writer, name, value)
    kinds = {name: kind_of(name, shape, precision) for name, shape in shapes.items()}
    factors = _factors(config)
    if factors is not None:
        writer.add_tensor_info(FREQUENCIES, factors.shape, factors.dtype, factors.nbytes)
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType[kinds[name]]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if shape[-1] % elements:
            raise ValueError(
                f"{name} has {shape[-1]} inputs, and {kinds[name]} blocks are of {elements}: give "
                "--dtype bfloat16"
            )
        if not (stored := stored_name(name, architecture)):
            raise ValueError(f"{name} has no place in a GGUF file of architecture {architecture}")
        count = int(np.prod(shape)) // elements * size
        writer.add_tensor_info(stored, shape, np.dtype(np.float32), count, raw_dtype=kind)
    writer.write_header_to_file(path)
    try:
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        for at, name in enumerate(shapes):
            told(name, at / len(shapes))
            numbers = tensor(name)
            if architecture == "llama":
                numbers = _side_by_side(config, name, numbers)
            writer.write_tensor_data(_data(numbers, kinds[name], rounded))
    finally:
        writer.close()


def architecture_of(config: Any) -> str:
    """What such a file calls it. Raises `ValueError` for one that is not written."""
    known = {name: kind for kind, name in CLASSES.items()} | {"MistralForCausalLM": "llama"}
    for name in config.architectures or [type(config).__name__.replace("Config", "ForCausalLM")]:
        if name in known:
            return known[name]
    raise ValueError(
        f"a model of type {config.model_type!r} is not written as GGUF: "
        f"{', '.join(CLASSES)} and mistral are"
    )


def _fields(config: Any, architecture: str, precision: str) -> dict[str, Any]:
    rope = config.rope_parameters
    if rope["rope_type"] not in ("default", "linear", "yarn", "llama3"):
        raise ValueError(f"rotary scaling of type {rope['rope_type']!r} is not written as GGUF")
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise ValueError("layers with a sliding window are not written as GGUF")
    if architecture == "llama" and getattr(config, "sliding_window", None):
        raise ValueError("a sliding window is not written as GGUF")
    found = {
        "general.name": PurePath(config._name_or_path).name or config.model_type,
        "general.file_type": NUMBERS[KINDS[precision]],
        "general.quantization_version": 2,
        "{arch}.context_length": config.max_position_embeddings,
        "{arch}.embedding_length": config.hidden_size,
        "{arch}.block_count": config.num_hidden_layers,
        "{arch}.feed_forward_length": config.intermediate_size,
        "{arch}.attention.head_count": config.num_attention_heads,
        "{arch}.attention.head_count_kv": config.num_key_value_heads,
        "{arch}.attention.key_length": _width(config),
        "{arch}.attention.value_length": _width(config),
        "{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "{arch}.rope.dimension_count": _width(config),
        "{arch}.rope.freq_base": float(rope["rope_theta"]),
        "{arch}.vocab_size": config.vocab_size,
    }
    if rope["rope_type"] in ("linear", "yarn"):
        found["{arch}.rope.scaling.type"] = rope["rope_type"]
        found["{arch}.rope.scaling.factor"] = float(rope["factor"])
    if rope["rope_type"] == "yarn":
        length = rope["original_max_position_embeddings"]
        found["{arch}.rope.scaling.original_context_length"] = length
        for beta in BETAS:
            if rope.get(beta) is not None:
                found[f"{{arch}}.rope.scaling.yarn_{beta}"] = float(rope[beta])
        if lost := {name for name, usual in UNWRITTEN.items() if rope.get(name, usual) != usual}:
            raise ValueError(f"rotary scaling with {min(lost)} is not written as GGUF")
    return {name.replace("{arch}", architecture): value for name, value in found.items()}


def _width(config: Any) -> int:
    width = getattr(config, "head_dim", None)
    return int(width or config.hidden_size // config.num_attention_heads)


def _factors(config: Any) -> NDArray[np.float32] | None:
    """What Llama 3's rotary scaling divides each frequency by, as a tensor of the file."""
    if config.rope_parameters["rope_type"] != "llama3":
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = np.arange(0, _width(config), 2, dtype=np.float64) / _width(config)
    usual = config.rope_parameters["rope_theta"] ** -exponents
    return np.asarray(usual / slowed.double().numpy(), np.float32)


def _side_by_side(config: Any, name: str, tensor: Tensor) -> Tensor:
    """The halves of each head of queries and keys, whose neighbours rotate in such files."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return tensor
    halves = tensor.view(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _data(tensor: Tensor, kind: str, rounded: Rounded) -> NDArray[Any]:
    if kind not in PLAIN:
        return rounded(tensor, kind)
    plain = tensor.to(PLAIN[kind]).contiguous()
    return plain.view(torch.uint8).numpy()


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif name != "general.architecture":
        writer.add_string(name, value)
