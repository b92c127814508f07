"""Small models for the native runner, their logits one token at a time and in other passes."""

from __future__ import annotations

import copy
import platform
from collections.abc import Sequence
from functools import cache, partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

import all_trees
import tiny
from draftproof import native
from draftproof.runners import packing
from draftproof.runners.base import Work
from draftproof.runners.native import NativeRunner
from draftproof.runners.packed_formats import MATRICES
from draftproof.runners.team import Team
from draftproof.runners.weights import LoadedWeights
from draftproof.tree import TokenTree

V = 99
random_tree = partial(all_trees.random_tree, vocabulary=V)
ARM = platform.machine().lower() in ("aarch64", "arm64")
SETS = ("portable", *(("neon", "neon-dot", "neon-matrix") if ARM else ("avx2", "avx512", "amx")))
PRECISIONS = ("bfloat16", "int8", "int4")
FORMATS: dict[str, Any] = {  # of those that are not bfloat16
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int4",
    "mixed": {
        native.Q: native.INT8,
        native.K: native.INT8,
        native.V: native.INT8,
        native.DOWN: native.INT4,
    },
    "mixed otherwise": {
        native.HEAD: native.INT4,
        native.OUT: native.INT8,
        native.GATE: native.INT4,
        native.UP: native.INT4,
    },
}
SIZES: dict[str, Any] = {
    **tiny.COMMON,
    "vocab_size": V,
    "hidden_size": 54,  # no multiple of a step, a lane or a panel
    "num_attention_heads": 6,
    "intermediate_size": 90,
    "head_dim": 16,
}
KINDS = [tiny.KINDS[i % 2] for i in range(4)]
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ROPE}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama3 rope": lambda: LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "linear rope": lambda: LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", **ROPE}),
    "yarn rope": lambda: LlamaConfig(**SIZES, rope_parameters={"rope_type": "yarn", **ROPE}),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=5),
    "qwen2": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=7, layer_types=KINDS
    ),
    "qwen3": lambda: Qwen3Config(
        **{**SIZES, "num_key_value_heads": 1, "head_dim": 80},
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=KINDS,
    ),
}


# Contexts longer than what attention takes at a time, and more heads on one key than go together.
LONG: dict[str, Any] = {**SIZES, "max_position_embeddings": 512, "num_hidden_layers": 2}
FAR: dict[str, Any] = {
    "many heads": lambda: LlamaConfig(
        **{**LONG, "hidden_size": 72, "num_attention_heads": 36, "num_key_value_heads": 1}
    ),
    "wide window": lambda: MistralConfig(**LONG, sliding_window=150),
    "narrow window": lambda: MistralConfig(**LONG, sliding_window=9),
}


def sets() -> list[str]:
    """The instruction sets that this machine has."""
    return [name for name in SETS if native.library().dp_kernels(name.encode())]


@cache
def model(name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Biases and norms are random too: a fresh model has zeros and ones there."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config({**CONFIGS, **FAR}[name](), dtype=torch.bfloat16)
        for path, parameter in made.named_parameters():
            if path.endswith("bias") or "norm" in path:
                torch.nn.init.normal_(parameter, mean=float("norm" in path), std=0.2)
    if dtype != torch.bfloat16:  # .to(bfloat16) would round the rotary frequencies too
        made = made.to(dtype)
    return made.eval()


@cache
def team(threads: int) -> Team:
    return Team(threads)


@cache
def packed(name: str, precision: str, kernels: str = "") -> packing.Packed:
    return packing.Packed(LoadedWeights(model(name)), FORMATS[precision], kernels=kernels)


@cache
def as_packed(name: str, precision: str) -> PreTrainedModel:
    """In float32, with the weights that the kernels multiply."""
    made, from_ = copy.deepcopy(model(name, torch.float32)), packed(name, precision)
    made.lm_head.weight = torch.nn.Parameter(unpacked(from_, native.HEAD, 0, made.lm_head))
    for number, layer in enumerate(made.model.layers):
        for which, path in MATRICES.items():
            linear = layer.get_submodule(path)
            linear.weight.data = unpacked(from_, which, number, linear)
    return made


def unpacked(of: packing.Packed, which: int, layer: int, linear: Any) -> Tensor:
    """A matrix (out, in) out of its panels."""
    weight = torch.empty(linear.out_features, linear.in_features)
    for output, row in enumerate(weight):
        args = of.handle, which, layer, output, row.data_ptr()
        assert of.library.dp_model_weights(*args) == native.OK
    return weight


def runner(
    name: str = "llama",
    precision: str = "bfloat16",
    kernels: str = "",
    threads: int = 2,
    **more: Any,
) -> NativeRunner:
    return NativeRunner(
        model(name),
        precision=precision,
        team=team(threads),
        packed=packed(name, precision, kernels),
        **more,
    )


def tokens(seed: int, count: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, V) for _ in range(count)]


def one_by_one(made: NativeRunner, ids: Sequence[int]) -> Tensor:
    """Plain decoding: the logits after each token, (T, V)."""
    key, rows = 10**6, []
    for token in ids:
        (output,) = made.forward([Work(key, [], TokenTree.chain([token]))])
        rows.append(output.logits[0].clone())
        made.keep(key, [0])
    made.free(key)
    return torch.stack(rows)


def spread_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / (want - want.mean(-1, keepdim=True)).norm())


def bits_do_not_depend_on_the_pass(name: str, precision: str, kernels: str) -> None:
    """Chains, chunks of a prompt, batches, trees, growing trees, threads: one answer."""
    rng, ids = Random(4), tokens(4, 41)
    plain = one_by_one(runner(name, precision, kernels, threads=1), ids)
    for threads in (1, 2):
        made = runner(name, precision, kernels, threads)
        assert torch.equal(one_by_one(made, ids), plain)
        for length in (2, 7, 12, 13, 29, 41):  # a tile, more than one, all
            (output,) = made.forward(
                [Work(0, ids[: 41 - length], TokenTree.chain(ids[41 - length :]))]
            )
            assert torch.equal(output.logits, plain[41 - length :])
            made.free(0)
        at = 0
        for size in (1, 16, 3, 20):
            made.forward([Work(0, ids[at : at + size], None)])
            at += size
        (output,) = made.forward([Work(0, [], TokenTree.chain([ids[40]]))])
        assert torch.equal(output.logits[0], plain[40])
        _trees(made, rng, ids)


def _trees(made: NativeRunner, rng: Random, ids: list[int]) -> None:
    """Two requests with trees in one pass, each node against its path alone; then a roll-back."""
    trees = [random_tree(rng, ids[20], 14), random_tree(rng, ids[30], 9)]
    work = [Work(1, ids[:20], trees[0]), Work(2, ids[:30], trees[1])]
    kept = [output.logits.clone() for output in made.forward(work)]
    for item, rows in zip(work, kept, strict=True):
        assert item.tree is not None
        for node in range(len(item.tree)):
            path = [*item.new, item.tree.tokens[0], *item.tree.path_tokens(node)]
            assert torch.equal(rows[node], one_by_one(made, path)[-1])
    tree = trees[0]
    path = tree.path(len(tree) - 1)
    made.keep(1, path)
    sequence = [*ids[:20], *(tree.tokens[node] for node in path), 5]
    grown = TokenTree.chain([5, 6, 7])
    first = made.forward([Work(1, [], TokenTree.chain([5]))])[0].logits[0].clone()
    more = made.forward([Work(1, [], grown, first=1)])[0].logits.clone()
    want = one_by_one(made, [*sequence, 6, 7])
    assert torch.equal(first, want[-3]) and torch.equal(more, want[-2:])
    for key in (1, 2):
        made.free(key)
