"""Heads on disk: ours, the Medusa repository's layout, and the one that vLLM took until mid-2026.

Does not know targets, or how heads are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftproof.bundled import located
from draftproof.heads.module import AGAIN, Heads, shaped

FORMAT = "draftproof-medusa"
OLD_FORMAT = "foretoken-medusa"  # the same, written under the project's former name

# Names of weight and bias of layer i, and of the projection, of head k. Ours are vLLM's too, which
# has a copy of a shared LM head beside them.
OURS = "blocks.{k}.layers.{i}.weight", "blocks.{k}.layers.{i}.bias", "lm_heads.{k}.weight"
MAP, ONE = "token_map", "lm_head.weight"  # the ids of a part of the vocabulary; one for all heads
ORIGINAL = "{k}.{i}.linear.weight", "{k}.{i}.linear.bias", "{k}.{layers}.weight"
ORIGINAL_FILES = ("medusa_lm_head.pt", "medusa_lm_head.safetensors")
CONFIG_BYTES = 1 << 20  # at most: a tree of thousands of nodes takes hundreds of MB to be read
NOTES = ("heads", "layers", "hidden_size", "vocab_size", "target", "accuracies", "tree", "exit")


def save(folder: str | Path, heads: Heads) -> None:
    """Write `model.safetensors` and `config.json`."""
    notes = {name: getattr(heads, name) for name in NOTES}
    config = {"format": FORMAT, "shared_head": heads.shared} | notes
    _write(folder, "model.safetensors", _named(OURS, heads), config)


def export_original(folder: str | Path, heads: Heads, lm_head: Tensor | None = None) -> None:
    """Write the Medusa repository's `medusa_lm_head.pt` and `config.json`.

    lm_head: the target's (V, d), needed if the heads share it, because there each has its own.
    """
    _refuse_exit(heads)
    if heads.tokens is not None:
        raise ValueError("that layout has no heads of a part of the vocabulary")
    tensors = _named(ORIGINAL, heads)
    for k in range(heads.heads):
        for i in range(heads.layers):  # there a block has a bias, and would start it at random
            zeros = heads.weights.new_zeros(heads.hidden_size)
            tensors.setdefault(ORIGINAL[1].format(k=k, i=i), zeros)
        if heads.outputs is None:
            tensors[ORIGINAL[2].format(k=k, layers=heads.layers)] = _lm_head(heads, lm_head)
    config: dict[str, Any] = {"base_model_name_or_path": heads.target}
    config |= {"medusa_num_heads": heads.heads, "medusa_num_layers": heads.layers}
    _write(folder, ORIGINAL_FILES[0], tensors, config)


def export_vllm(folder: str | Path, heads: Heads, lm_head: Tensor | None = None) -> None:
    """Write `model.safetensors` and `config.json` as vLLM took them until mid-2026.

    lm_head: the target's (V, d), needed if the heads share it, because there it lies beside them.
    """
    _refuse_exit(heads)
    tensors = _named(OURS, heads)
    if heads.outputs is None:
        tensors[ONE] = _lm_head(heads, lm_head)
    config: dict[str, Any] = {"model_type": "medusa", "architectures": ["MedusaModel"]}
    config |= {"num_heads": heads.heads, "num_hidden_layers": heads.layers}
    config |= {"hidden_size": heads.hidden_size, "vocab_size": heads.vocab_size}
    config |= {"medusa_fc_bias": heads.biases is not None, "original_lm_head": heads.shared}
    if heads.tokens is not None:
        config["truncated_vocab_size"] = len(heads.tokens)
    _write(folder, "model.safetensors", tensors, config)


def exit_of(folder: str | Path) -> int | None:
    """After how many of the target's layers the heads there are read; None: after all of them."""
    file = Path(located(folder, "heads")) / "config.json"
    try:
        return _read(file).get("exit") if file.is_file() else None
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def _refuse_exit(heads: Heads) -> None:
    if heads.exit is not None:
        raise ValueError("a head that reads a layer in the middle is no Medusa head")


def _lm_head(heads: Heads, lm_head: Tensor | None) -> Tensor:
    if lm_head is None:
        raise ValueError("these heads share the target's LM head: give its weight as lm_head=")
    return shaped("lm_head", lm_head, heads.vocab_size, heads.hidden_size)


def _named(names: Sequence[str], heads: Heads) -> dict[str, Tensor]:
    weight, bias, output = names
    tensors: dict[str, Tensor] = {}
    outputs = heads.outputs
    for k in range(heads.heads):
        for i in range(heads.layers):
            tensors[weight.format(k=k, i=i)] = heads.weights[k, i]
            if heads.biases is not None:
                tensors[bias.format(k=k, i=i)] = heads.biases[k, i]
        if outputs is not None and not heads.shared:
            tensors[output.format(k=k, layers=heads.layers)] = outputs[k]
    if heads.tokens is not None:
        tensors[MAP] = heads.tokens
    if outputs is not None and heads.shared:
        tensors[ONE] = outputs[0]
    return tensors


def _write(folder: str | Path, name: str, tensors: dict[str, Tensor], config: Any) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Clones, because torch.save writes the whole of what a view is taken from.
    tensors = {key: t.detach().cpu().clone().contiguous() for key, t in tensors.items()}
    (torch.save if name.endswith(".pt") else save_file)(tensors, folder / name)
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(path: str | Path) -> Heads:
    """Heads from a folder or file in any of the three layouts.

    path: "bundled" are those of the bundled model.
    Raises `ValueError`, naming the place, the cause and the way out.
    """
    if not isinstance(path, str | Path):
        kind = type(path).__name__
        raise ValueError(f"heads are a folder or a file of them, or a Heads, and no {kind}")
    path = Path(located(path, "heads"))
    try:
        for file in (path, *(path / name for name in ORIGINAL_FILES)):
            if file.is_file():
                beside, tensors = file.parent / "config.json", _read(file)
                config = _read(beside) if beside.exists() else {}
                if OURS[0].format(k=0, i=0) in tensors:
                    return _heads(OURS, config, tensors)
                kept = {n: config[n] for n in config if n.startswith(("medusa_", "base_model"))}
                return _heads(ORIGINAL, kept, tensors)
        if not (files := sorted(path.glob("*.safetensors"))):
            raise ValueError(
                "no heads there: fetch a folder of them with `hf download`, or make some with "
                "`draftproof train medusa`"
            )
        tensors = {name: t for file in files for name, t in _read(file).items()}
        if any(name.startswith(("model.", "transformer.")) for name in tensors):
            raise ValueError("a model is there, and no heads: a model is a draft, --draft MODEL")
        return _heads(OURS, _read(path / "config.json"), tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.suffix == ".json":
            if (size := file.stat().st_size) > CONFIG_BYTES:
                raise ValueError(f"{size:,} bytes, more than any heads need")
            return dict(json.loads(file.read_text(encoding="utf-8")))
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        # Some files put a prefix before every name.
        return {re.sub(r"^medusa_heads?\.", "", n): torch.as_tensor(t) for n, t in tensors.items()}
    except Exception as error:  # whatever json, pickle and zip make of a broken or foreign file
        said = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ValueError(f"{file.name} cannot be read ({said}): {AGAIN}") from None


def _heads(names: Sequence[str], config: Mapping[str, Any], tensors: dict[str, Tensor]) -> Heads:
    """Heads of named tensors, as many as there are; what a config says must agree with them."""
    weight, bias, output = names
    if config.get("format", FORMAT) not in (FORMAT, OLD_FORMAT):
        raise ValueError(f"config.json says format: {config['format']!r}, not {FORMAT!r}: {AGAIN}")
    V, shared = config.get("vocab_size"), config.get("shared_head", config.get("original_lm_head"))
    tokens, one = tensors.pop(MAP, None), tensors.get(ONE)
    if tokens is None and config.get("truncated_vocab_size", V) not in (V, None):
        raise ValueError(f"the tensor {MAP} is missing: {AGAIN}")
    if shared:  # what is there is a copy of the target's
        tensors = {name: t for name, t in tensors.items() if not name.startswith("lm_head")}
    layers = sum(weight.format(k=0, i=i) in tensors for i in range(len(tensors))) or 1
    K = sum(weight.format(k=k, i=0) in tensors for k in range(len(tensors))) or 1

    def stacked(name: str, count: int) -> Tensor:
        keys = [name.format(k=k, i=i, layers=layers) for k in range(K) for i in range(count)]
        for key in keys:
            if key not in tensors:
                raise ValueError(f"the tensor {key} is missing: {AGAIN}")
            shaped(key, tensors[key], *tensors[keys[0]].shape)
        return torch.stack([tensors.pop(key) for key in keys])

    weights = stacked(weight, layers).unflatten(0, (K, layers))
    biased = bias.format(k=0, i=0) in tensors
    biases = stacked(bias, layers).unflatten(0, (K, layers)) if biased else None
    outputs = None if shared else stacked(output, 1)
    if tokens is not None:
        outputs, tokens = _part(one[None] if shared and one is not None else outputs, tokens, V)
        outputs = None if shared and tokens is None else outputs
    if tensors:
        raise ValueError(f"{min(tensors)} is no part of heads: give a folder of heads alone")
    _agree(config, K, layers, weights.shape[-1])
    V = [*outputs.shape, 0][1] if V is None and outputs is not None else V
    if not isinstance(V, int):
        raise ValueError(f"config.json says vocab_size: {V!r}, which is no number: {AGAIN}")
    return Heads(
        weights,
        biases,
        outputs,
        vocab_size=V,
        tokens=tokens,
        target=str(config.get("target", config.get("base_model_name_or_path", ""))),
        accuracies=config.get("accuracies"),
        tree=config.get("tree"),
        exit=config.get("exit"),
    )


def _part(outputs: Tensor | None, tokens: Tensor, V: Any) -> tuple[Tensor, Tensor | None]:
    """Outputs of a part of the V tokens (heads, R, d), and its ids (R,), ascending; None: all."""
    if outputs is None:
        raise ValueError(f"the tensor {ONE} is missing: {AGAIN}")
    if tokens.ndim != 1:
        raise ValueError(f"{MAP} is {tuple(tokens.shape)} and should be a row of ids: {AGAIN}")
    rows = outputs.shape[1:2]
    if rows == (V,) and 0 < len(tokens) < V and 0 <= tokens.min() <= tokens.max() < V:
        outputs = outputs[:, tokens.long()]  # as vLLM does with projections on all tokens
    elif rows != (len(tokens),):
        raise ValueError(f"{MAP} has {len(tokens)} ids and not as many as the heads: {AGAIN}")
    order = tokens.argsort()
    outputs, tokens = outputs[:, order], tokens[order]
    every = not tokens.is_floating_point() and tokens.tolist() == [*range(len(tokens))]
    return outputs, None if every and len(tokens) == V else tokens


def _agree(config: Mapping[str, Any], K: int, layers: int, d: int) -> None:
    """Refuse a config that says something else; but some published ones say too few heads."""
    said: dict[str, Sequence[int]] = {"hidden_size": (d,)}
    said |= dict.fromkeys(("heads", "num_heads", "medusa_num_heads"), range(1, K + 1))
    said |= dict.fromkeys(("layers", "num_hidden_layers", "medusa_num_layers"), (layers,))
    for name, values in said.items():
        if config.get(name, values[-1]) not in values:
            raise ValueError(f"config.json says {name}: {config[name]}, not {values[-1]}: {AGAIN}")
