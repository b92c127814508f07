"""How a draft begins: a model of the target's class, made of some of its layers, or narrower.

Does not know how it is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from draftproof.runners import encoders
from draftproof.runners.crossing import Roles

DEPTHS = "num_decoder_layers", "decoder_layers"  # what configurations call a decoder's depth
ASIDE = ("idx", "index", "layer_id", "training")  # attributes that number a layer, or pass
SCALED = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")


def depth_of(model: Any) -> int:
    """Layers of the decoder."""
    if encoders.is_one(model):
        return len(Roles(model.get_decoder()).own)
    return int(model.config.get_text_config().num_hidden_layers)


def spread(count: int, layers: int) -> list[int]:
    """`count` of so many layers, evenly, the first and the last among them."""
    return [i * (layers - 1) // max(1, count - 1) for i in range(count)]


def layers_and_width(
    size: str | None, choose: str | None, depth: int
) -> tuple[list[int], int | None]:
    """Which of the target's `depth` layers, and a width or None; of "2", "2x192", or "0,5,11"."""
    numbers, width = written(size, choose)
    if isinstance(numbers, int):
        if not 1 <= numbers <= depth or width == 0:
            raise ValueError(
                f"--size {size} must have 1 to the target's {depth} layers, and a width"
            )
        return spread(numbers, depth), width
    if numbers != sorted({n for n in numbers if 0 <= n < depth}):
        raise ValueError(
            f"--layers {choose} must be different ones of 0 to {depth - 1}, in their order"
        )
    return numbers, None


def written(size: str | None, choose: str | None) -> tuple[int | list[int], int | None]:
    """How many layers, or which ones, and a width or None, whatever the target has."""
    if choose is not None:
        try:
            return [int(number) for number in choose.split(",")], None
        except ValueError:
            raise ValueError(f"--layers {choose!r} are no numbers: write them as 0,5,11") from None
    count, _, width = str(size).partition("x")
    if not count.isdecimal() or ("x" in str(size) and not width.isdecimal()):
        raise ValueError(
            f"--size {size!r} is no size: write the layers, or layers and width as 2x192"
        )
    return int(count), int(width) if width else None


def student(target: Any, layers: Sequence[int], width: int | None = None, seed: int = 0) -> Any:
    """A model like the target with as many layers as are named, in fp32, beside it.

    It is a copy of those layers, of the embeddings, the last norm and the head. With another width
    (hidden size; the heads keep theirs and get fewer) it is random, a function of `seed`.
    Of an encoder-decoder it keeps the whole encoder, which runs once a text.
    Raises `ValueError` where the target's class cannot be made so.
    """
    if width is not None and encoders.is_one(target):
        raise ValueError(
            "--size NxW is random, and an encoder-decoder learns slowly to look at what was read: "
            "use --size N, or --start with one that is trained"
        )
    name, what = type(target).__name__, f"{len(layers)} layers"
    what += "" if width is None else f" of width {width}"
    try:
        config = _config(target, layers, width)
        with torch.random.fork_rng(devices=[]):  # transformers draws weights from no other
            torch.default_generator.manual_seed(seed)
            draft: Any = type(target)(config).float()
    except Exception as error:  # whatever a class makes of a shape
        raise ValueError(
            f"{name} cannot be made with {what} ({_first(error)}): use another size"
        ) from error
    if width is None:
        _copy(target, draft, layers)
    if encoders.is_one(target):  # where it starts from, and its rules
        draft.generation_config = copy.deepcopy(target.generation_config)
        return draft.to(target.device)
    ends = ("bos_token_id", "eos_token_id", "pad_token_id")  # the rest is about sampling
    known = getattr(target, "generation_config", None) or target.config
    draft.generation_config = GenerationConfig(**{end: getattr(known, end, None) for end in ends})
    return draft.to(target.device)


def _config(target: Any, layers: Sequence[int], width: int | None) -> Any:
    config = copy.deepcopy(target.config)
    if encoders.is_one(target):
        (field,) = [name for name in DEPTHS if name in config.to_dict()]
        setattr(config, field, len(layers))
        return config
    text = config.get_text_config()
    depth = int(text.num_hidden_layers)
    for field, value in text.to_dict().items():
        if "layer" in field and isinstance(value, list | tuple) and len(value) == depth:
            setattr(text, field, [value[i] for i in layers])
    text.num_hidden_layers = len(layers)
    if width is not None:
        _narrow(text, width)
    return config


def _narrow(text: Any, width: int) -> None:
    """Change a configuration to another hidden size, what hangs on it in proportion."""
    share, heads = width / text.hidden_size, int(text.num_attention_heads)
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    groups = heads // (getattr(text, "num_key_value_heads", None) or heads)
    few = max(1, width // size)
    if getattr(text, "head_dim", None) is None:  # then heads divide the width
        few = next(n for n in range(few, 0, -1) if width % n == 0)
    for field in SCALED:
        if isinstance(value := getattr(text, field, None), int):
            setattr(text, field, max(32, round(value * share / 32) * 32))
    text.hidden_size, text.num_attention_heads = width, few
    if getattr(text, "num_key_value_heads", None) is not None:
        most = max(1, few // groups)
        text.num_key_value_heads = next(n for n in range(most, 0, -1) if few % n == 0)


def _copy(target: Any, draft: Any, layers: Sequence[int]) -> None:
    """Fill `draft` from the target; refuse it where a layer would work otherwise there."""
    name, depth = type(target).__name__, depth_of(target)
    whole = target.get_decoder() if encoders.is_one(target) else target
    inner = {id(module) for module in whole.modules()}
    stacks = [
        path
        for path, module in target.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth and id(module) in inner
    ]
    if not stacks:
        raise ValueError(f"{name} has no list of layers to choose from: use --size NxW")
    stack, state = stacks[0] + ".", {}
    places = {str(layer): str(place) for place, layer in enumerate(layers)}
    for key, tensor in target.state_dict().items():
        number, dot, rest = key.removeprefix(stack).partition(".")
        if not key.startswith(stack):
            state[key] = tensor
        elif number in places:
            state[stack + places[number] + dot + rest] = tensor
    try:
        draft.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"layers of {name} do not fit into a smaller one ({_first(error)}): use --size NxW"
        ) from error
    theirs, ours = target.get_submodule(stacks[0]), draft.get_submodule(stacks[0])
    for place, layer in enumerate(layers):
        if other := _difference(theirs[layer], ours[place]):
            raise ValueError(
                f"layer {layer} of {name} would differ in {other} as layer {place} of the draft: "
                "choose other layers, or use --size NxW"
            )


def _difference(theirs: nn.Module, ours: nn.Module) -> str | None:
    """A plain attribute in which two layers differ, besides those that number them."""
    for one, other in zip(theirs.modules(), ours.modules(), strict=True):
        for name, value in vars(one).items():
            plain = isinstance(value, str | int | float | None)
            aside = name.startswith("_") or any(part in name for part in ASIDE)
            if plain and not aside and value != vars(other).get(name):
                return name
    return None


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
