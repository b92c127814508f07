"""A model's decoder, altered for one call and then as it was.

Fewer layers, other positions, experts without a bound, states that the head reads instead of its
own, products that nobody looks at: by transformers' names and by hooks, so that all else stays the
model's business. Knows nothing of attention, and nothing of requests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

T = TypeVar("T")


def stack(decoder: nn.Module, depth: int) -> tuple[str, nn.ModuleList]:
    """The list of a decoder's layers, and its name. Raises `ValueError` where there is none."""
    for name, part in decoder.named_children():
        if isinstance(part, nn.ModuleList) and len(part) == depth:
            return name, part
    raise ValueError(f"its {depth} layers are no list")


def ending(decoder: nn.Module, depth: int, layers: int, call: Callable[[], T]) -> T:
    """`call` while the decoder, of so many layers, has the first `layers` alone."""
    if layers == depth:
        return call()
    name, whole = stack(decoder, depth)
    try:
        setattr(decoder, name, whole[:layers])
        return call()
    finally:
        setattr(decoder, name, whole)


def bounded(module: nn.Module) -> list[Any]:
    """Routers whose experts take so many rows and no more."""
    return [part for part in module.modules() if hasattr(part, "expert_capacity")]


def unbounded(bounded: Sequence[Any], call: Callable[[], T]) -> T:
    """`call` while the experts of these routers take as many rows as there are.

    Written token by token none is ever turned away, so neighbours in a pass must not be either.
    """
    before = [part.expert_capacity for part in bounded]
    try:
        for part in bounded:
            part.expert_capacity = 1 << 40
        return call()
    finally:
        for part, old in zip(bounded, before, strict=True):
            part.expert_capacity = old


def nothing_read(model: Any) -> Any:
    """What an encoder would make of one token, for a pass that does not look at it."""
    config = model.config.get_text_config()
    size = int(getattr(config, "cross_attention_hidden_size", None) or config.hidden_size)
    states = torch.zeros(1, 1, size, dtype=model.dtype, device=model.device)
    made: Any = BaseModelOutput(last_hidden_state=states)
    for name in ("attention_mask", "router_logits"):  # which some models look for
        setattr(made, name, None)
    return made


def reading(
    modules: Iterable[nn.Module], states: Tensor, call: Callable[[], T]
) -> tuple[T, dict[nn.Module, Tensor]]:
    """`call`, and what parts of these modules return that are given `states` (N, tokens, d)."""
    seen: dict[nn.Module, Tensor] = {}

    def behind(part: Any, args: Any, output: Any) -> None:
        if args and args[0] is states and isinstance(output, Tensor):
            seen[part] = output

    parts = [part for module in modules for part in module.modules() if part is not module]
    handles = [part.register_forward_hook(behind) for part in parts]
    try:
        return call(), seen
    finally:
        for handle in handles:
            handle.remove()


def silent(made: Mapping[nn.Module, Tensor], call: Callable[[], T]) -> T:
    """`call` while these modules compute nothing and return what is named."""
    before = [part.__dict__.get("forward") for part in made]
    try:
        for part, output in made.items():
            part.__dict__["forward"] = lambda *_, output=output, **__: output
        return call()
    finally:
        for part, old in zip(made, before, strict=True):
            if old is not None:  # somebody's wrapper
                part.__dict__["forward"] = old
            else:
                part.__dict__.pop("forward", None)


def headed(
    decoder: nn.Module, change: Callable[[Tensor], Tensor], call: Callable[[], T]
) -> tuple[T, Tensor]:
    """`call`, whose head reads what `change` makes of the decoder's states; and those (1, T, d).

    What else a model does before and behind its head stays its own business.
    """
    seen: list[Tensor] = []

    def behind(module: Any, args: Any, output: Any) -> Any:
        seen.append(output.last_hidden_state)
        output.last_hidden_state = change(output.last_hidden_state)
        return output

    handle = decoder.register_forward_hook(behind)
    try:
        return call(), seen[0]
    finally:
        handle.remove()


def arguments(module: nn.Module) -> list[str]:
    """Of its forward, in their order."""
    forward: Any = module.forward
    if (function := getattr(forward, "__func__", None)) is None:  # somebody's wrapper
        return [*inspect.signature(forward).parameters]
    return _parameters(function)[1:]


@functools.lru_cache(maxsize=64)
def _parameters(function: Any) -> list[str]:
    """To find them out takes longer than a small layer."""
    return [*inspect.signature(function).parameters]


def placed(decoder: nn.Module, positions: Tensor, call: Callable[[], T]) -> T:
    """`call` with these positions (T) embedded where the decoder would count from 0.

    One that turns keys by positions takes them itself; one with relative ones alone takes none.
    """
    where = getattr(decoder, "embed_positions", decoder)
    names = arguments(where)
    if "position_ids" in names:

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            place = names.index("position_ids")
            if place < len(args):
                at = positions.view(args[place].shape)
                return (*args[:place], at, *args[place + 1 :]), kwargs
            at = positions[None] if module is decoder else positions
            return args, {**kwargs, "position_ids": at}

        handle = where.register_forward_pre_hook(before, with_kwargs=True)
    elif where is decoder:
        return call()
    else:

        def behind(module: Any, args: Any, output: Tensor) -> Tensor:
            rows = positions[None] + module.padding_idx + 1
            rows = rows.where(args[0] != module.padding_idx, module.padding_idx)  # which is 0
            return module.weights[rows].to(output)  # type: ignore[no-any-return]

        handle = where.register_forward_hook(behind)
    try:
        return call()
    finally:
        handle.remove()
