"""Tree attention as a transformers attention function.

Every packed row writes its keys and values into our cache and attends to the committed tokens and
to its own ancestors. The step travels as a keyword through the model's forward; models themselves
are unmodified. Knows nothing of requests; windows are measured in positions, not in slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface

from draftproof.runners.kv import KVCache
from draftproof.tree import TokenTree

NAME = "draftproof"
HARMLESS = ("position_ids", "cache_position")  # tensors that attention layers hand on unused


@dataclass(slots=True)
class Segment:
    """The packed rows begin..end of one request: `fresh` new tokens, then nodes from `first`.

    slots:   0 .. cached | cached .. root    | root .. root + N
             committed   | new (a chain)     | nodes of the tree
    """

    begin: int
    end: int
    row: int
    cached: int
    fresh: int
    tree: TokenTree | None
    first: int
    _masks: dict[tuple[int | None, torch.dtype], Tensor | None] = field(default_factory=dict)

    @property
    def root(self) -> int:
        return self.cached + self.fresh

    @property
    def at(self) -> int:
        """The first slot written."""
        return self.cached + self.fresh + self.first if self.first else self.cached

    @property
    def slots(self) -> int:
        """Slots in use after this pass."""
        return self.root + (len(self.tree.tokens) if self.tree is not None else 0)

    def positions(self) -> list[int]:
        """Absolute positions of the packed rows."""
        chain = list(range(self.cached, self.root))
        if self.tree is not None:
            chain += [self.root + depth for depth in self.tree.depths[self.first :]]
        return chain

    def is_prompt(self) -> bool:
        """A chain with nothing before it: plain causal attention."""
        return self.at == 0 and (self.tree is None or self.tree.is_chain)

    def mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """What may be seen, as an additive (T, slots) tensor; None when everything may."""
        if window is not None and window >= self.slots:
            window = None  # no position is that far back
        known = (window, like.dtype)
        if known not in self._masks:
            self._masks[known] = self._mask(window, like)
        return self._masks[known]

    def _mask(self, window: int | None, like: Tensor) -> Tensor | None:
        rows, slots = self.end - self.begin, self.slots
        chain = self.tree is None or self.tree.is_chain
        if rows == 1 and chain and window is None:
            return None
        seen = torch.ones(rows, slots, dtype=torch.bool)
        seen = seen.tril(slots - rows) if chain else self._seen_in_tree(seen)
        if window is not None:
            places = list(range(self.root))
            if self.tree is not None:
                places += [self.root + depth for depth in self.tree.depths]
            query = torch.tensor(self.positions())[:, None]
            seen &= query - torch.tensor(places)[None, :] < window
        mask = torch.zeros(rows, slots, dtype=like.dtype)
        return mask.masked_fill_(~seen, float("-inf")).to(like.device)

    def _seen_in_tree(self, seen: Tensor) -> Tensor:
        assert self.tree is not None
        new_rows = self.root - self.cached
        seen[:new_rows] = torch.ones(new_rows, seen.shape[1], dtype=torch.bool).tril(self.cached)
        seen[new_rows:, self.root :] = self.tree.ancestors()[self.first :]
        return seen


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
        raise RuntimeError("an attention layer did not receive draftproof's keyword")
    step, layer = draftproof_step, int(module.layer_idx)  # type: ignore[arg-type]
    if step.calls is not None:
        bidirectional = getattr(module, "is_causal", True) is False
        unknown = tuple(k for k, v in others.items() if isinstance(v, Tensor) and k not in HARMLESS)
        masked, capped = attention_mask is not None, softcap is not None
        step.calls.append(Call(layer, sliding_window, masked, bidirectional, capped, unknown))
    elif attention_mask is not None:  # not on the probe's short sequences
        raise RuntimeError(f"layer {layer} was given a mask, which packed attention does not use")
    pieces = []
    for seg in step.segments:
        span = slice(seg.begin, seg.end)
        step.cache.write(layer, seg.row, seg.at, key[0, :, span], value[0, :, span])
        keys, values = step.cache.read(layer, seg.row, seg.slots)
        part = query[:, :, span]
        if softcap is not None or s_aux is not None:
            piece = _attend_slowly(part, keys, values, seg, scaling, sliding_window, softcap, s_aux)
        else:
            piece = _attend(part, keys, values, seg, scaling, sliding_window)
        pieces.append(piece.transpose(1, 2))
    # Contiguous, as transformers' own functions return it: some models call view on it.
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, dim=1), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seg: Segment,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """(1, heads, T, head size) by torch's fused kernels."""
    heads, rows = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    if seg.is_prompt() and (window is None or window >= seg.slots):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=rows > 1, scale=scaling, enable_gqa=groups > 1
        )
    mask = seg.mask(window, query)
    if groups == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    # The query heads of one key head stand below one another: no copy of keys is ever made.
    folded = query.reshape(1, key.shape[1], groups * rows, query.shape[3])
    if mask is not None:
        mask = mask.repeat(groups, 1)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(1, heads, rows, value.shape[3])


def _attend_slowly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seg: Segment,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """(1, heads, T, head size) with capped scores or sinks, which no fused kernel takes."""
    heads, rows = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    folded = query.reshape(1, key.shape[1], groups * rows, query.shape[3])
    scores = folded @ key.transpose(-1, -2)  # (1, key heads, groups * T, slots)
    scores = scores * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    mask = seg.mask(window, query)
    if mask is not None:
        scores = scores + mask.repeat(groups, 1)
    scores = scores.reshape(1, heads, rows, -1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).reshape(1, heads, 1, 1).expand(1, heads, rows, 1)
        shares = torch.cat([scores, sinks], dim=-1).softmax(-1, dtype=wide)[..., :-1]
    else:
        shares = scores.softmax(-1, dtype=wide)
    shares = shares.to(query.dtype).reshape(1, key.shape[1], groups * rows, -1)
    return (shares @ value).reshape(1, heads, rows, value.shape[3])


AttentionInterface.register(NAME, attend)
