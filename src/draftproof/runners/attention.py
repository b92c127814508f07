"""Tree attention as a transformers attention function.

Every packed row writes its keys and values into our cache and attends to the committed tokens and
to its own ancestors. The step travels as a keyword through the model's forward; models themselves
are unmodified. Keys and values are read as views, and nothing as large as rows x slots is made for
many rows. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from draftproof.runners import half_attention
from draftproof.runners.kv import KVCache
from draftproof.runners.segments import Part, Segment

S = TypeVar("S")
T = TypeVar("T")

NAME = "draftproof"
FOLDED = 32  # rows of all heads of a key head that attend at once: as many as a kernel blocks
SCORES = 1 << 22  # that are worked on at once where no fused kernel does
ELSEWHERE = (
    "draftproof runs this model in another thread just now: call it in your own as "
    "llm.runner.takeover.alone(lambda: model(...)), which waits for its turn"
)
HARMLESS = ("position_ids", "cache_position")  # tensors that attention layers hand on unused


@dataclass(frozen=True, slots=True)
class Call:
    """What one attention layer was given in the probe's pass."""

    layer: int
    window: int | None
    masked: bool
    bidirectional: bool
    capped: bool
    others: tuple[str, ...]  # tensors under keywords that we do not know


@dataclass(slots=True)
class Step:
    """One packed pass: who stands where, the cache, and a note of every call for the probe."""

    segments: Sequence[Segment]
    cache: KVCache
    calls: list[Call] | None = None


def during(variable: ContextVar[S], step: S, call: Callable[[], T]) -> T:
    """`call` with a step where functions look for it that no keyword reaches."""
    token = variable.set(step)
    try:
        return call()
    finally:
        variable.reset(token)


def attend(
    module: torch.nn.Module,
    query: Tensor,  # (1, heads, T, head size)
    key: Tensor,  # (1, key heads, T, head size)
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    draftproof_step: Step | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The registered function; returns (1, T, heads, head size) as transformers expects."""
    if draftproof_step is None:
        raise RuntimeError(ELSEWHERE)
    step, layer = draftproof_step, int(module.layer_idx)  # type: ignore[arg-type]
    if step.calls is not None:
        bidirectional = getattr(module, "is_causal", True) is False
        unknown = tuple(k for k, v in others.items() if isinstance(v, Tensor) and k not in HARMLESS)
        masked, capped = attention_mask is not None, softcap is not None
        step.calls.append(Call(layer, sliding_window, masked, bidirectional, capped, unknown))
    elif attention_mask is not None:  # not on the probe's short sequences
        raise RuntimeError(f"layer {layer} was given a mask, which packed attention does not use")
    for seg in step.segments:
        span = slice(seg.begin, seg.end)
        step.cache.write(layer, seg.row, seg.at, key[0, :, span], value[0, :, span])
    found = None
    if s_aux is None:
        asking = step.segments, step.cache, layer, query, scaling, sliding_window, softcap
        found = half_attention.attend(*asking)
    slowly = softcap is not None or s_aux is not None
    pieces = []
    for seg in step.segments:
        for part in seg.parts if found is None else half_attention.left(seg, query):
            rows = slice(seg.begin + part.begin, seg.begin + part.end)
            keys, values = step.cache.read(layer, seg.row, part.slots)
            given = seg, part, query[:, :, rows], keys, values, scaling, sliding_window
            piece = _attend_slowly(*given, softcap, s_aux) if slowly else _attend(*given)
            if found is None:
                pieces.append(piece.transpose(1, 2))
            else:
                found[:, rows] = piece.transpose(1, 2)
    if found is not None:
        return found, None
    # Contiguous, as transformers' own functions return it: some models call view on it.
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, dim=1), None


def _attend(
    seg: Segment,
    part: Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """(1, heads, T, head size) by torch's fused kernels."""
    heads, rows = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    # A prompt with nothing before it is plain causal attention.
    if part.chain and rows == part.slots and (window is None or window >= part.slots):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=rows > 1, scale=scaling, enable_gqa=groups > 1
        )
    if groups * rows <= FOLDED or rows == 1:
        # The query heads of one key head stand below one another: keys are read once.
        mask = seg.folded(part, window, query, groups)
        folded = query.reshape(1, key.shape[1], groups * rows, query.shape[3])
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
        return out.reshape(1, heads, rows, value.shape[3])
    mask = seg.mask(part, window, query)
    asked = _grouped(query.flip(2) if part.chain else query, groups)
    keys, values = (held[0, :, None].expand(-1, groups, -1, -1) for held in (key, value))
    out = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scaling)
    out = out.reshape(1, heads, rows, value.shape[3])
    return out.flip(2) if part.chain else out


def _attend_slowly(
    seg: Segment,
    part: Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """(1, heads, T, head size) with capped scores or sinks, which no fused kernel takes."""
    heads, rows = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    wide = torch.promote_types(query.dtype, torch.float32)
    mask = seg.mask(part, window, query)
    asked = _grouped(query.flip(2) if part.chain else query, groups)
    pieces = []
    block = max(1, SCORES // (heads * part.slots))
    for begin in range(0, rows, block):
        folded = asked[:, :, begin : begin + block].flatten(1, 2)  # so that no keys are copied
        scores = (folded @ key[0].transpose(-1, -2)) * scaling  # (key heads, groups * T, slots)
        scores = scores.unflatten(1, (groups, -1))
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores + mask[begin : begin + block]
        if s_aux is not None:
            sinks = s_aux.to(scores.dtype).reshape(-1, groups, 1, 1)
            sinks = sinks.expand(-1, -1, scores.shape[2], 1)
            shares = torch.cat([scores, sinks], dim=-1).softmax(-1, dtype=wide)[..., :-1]
        else:
            shares = scores.softmax(-1, dtype=wide)
        pieces.append((shares.to(query.dtype).flatten(1, 2) @ value[0]).unflatten(1, (groups, -1)))
    out = torch.cat(pieces, dim=2).reshape(1, heads, rows, value.shape[3])
    return out.flip(2) if part.chain else out


def _grouped(query: Tensor, groups: int) -> Tensor:
    """(1, heads, T, size) as (key heads, groups, T, size)."""
    return query.reshape(-1, groups, *query.shape[2:])


@cache
def known_as(name: str, function: Callable[..., Any]) -> str:
    """The name, by which transformers calls the function from now on."""
    # Imported by who has a model of transformers: it brings the code of all of them, seconds.
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)
    return name


def registered() -> str:
    return known_as(NAME, attend)
