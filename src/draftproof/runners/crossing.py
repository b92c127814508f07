"""Attention of an encoder-decoder's decoder in a packed pass.

Self-attention goes by our cache, with T5's bias by true distances; cross-attention reads keys and
values that were made once for each input. Which of the two a module is, its name tells: a flag or
the number of keys would not, for every model. The step travels beside the model's forward, because
some models hand no keyword to their cross-attention. Knows nothing of requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftproof.runners import attention, few_rows
from draftproof.runners.attention import Step
from draftproof.runners.few_rows import Text
from draftproof.runners.kv import Pair
from draftproof.runners.segments import Part, Segment

NAME = "draftproof-crossing"
SELF = ("self_attn", "SelfAttention")
CROSS = ("encoder_attn", "EncDecAttention", "cross_attn", "cross_attention")

T = TypeVar("T")


class Roles:
    """A decoder's attention modules: which is whose layer, and where T5's biases are.

    Raises `ValueError` for a decoder whose layers do not attend once to themselves and once across.
    """

    def __init__(self, decoder: nn.Module) -> None:
        self.own: dict[nn.Module, int] = {}  # -> layer
        self.across: dict[nn.Module, int] = {}
        self.tables: list[Distances | None] = []  # of each layer; None: no bias
        for path, module in decoder.named_modules():
            name = path.rpartition(".")[2]
            if name in SELF:
                self.own[module] = len(self.own)
                biased = getattr(module, "has_relative_attention_bias", False)
                first = next(iter(self.tables), None)
                self.tables.append(Distances(module) if biased else first)
            elif name in CROSS:
                self.across[module] = len(self.across)
        if not self.own or len(self.own) != len(self.across):
            raise ValueError(f"{len(self.own)} layers of self- and {len(self.across)} of others")


@dataclass(slots=True, kw_only=True)
class CrossStep(Step):
    """One packed pass. across: of each segment, by layer, (1, heads, input tokens, head size)."""

    roles: Roles
    across: Sequence[Mapping[int, Pair]]
    biases: dict[Any, Tensor] = field(default_factory=dict)
    few: dict[bool, bool] = field(default_factory=dict)  # to itself or across: is it little work?


@dataclass(slots=True)
class Capture:
    """A pass that is made for what cross-attention is given: (inputs, heads, tokens, head size)."""

    roles: Roles
    pairs: dict[int, Pair] = field(default_factory=dict)


_STEP: ContextVar[CrossStep | Capture | None] = ContextVar("step", default=None)


def during(step: CrossStep | Capture, call: Callable[[], T]) -> T:
    """`call`, which runs the decoder under `NAME`, as that step."""
    return attention.during(_STEP, step, call)


def attend(
    module: nn.Module,
    query: Tensor,  # (1, heads, T, head size)
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The registered function; returns (1, T, heads, head size) as transformers expects."""
    step = _STEP.get()
    if step is None:
        raise RuntimeError(attention.ELSEWHERE)
    if module in step.roles.across:
        layer = step.roles.across[module]
        if isinstance(step, Capture):
            step.pairs[layer] = key, value
            return torch.zeros_like(query).transpose(1, 2), None
        return _across(step, layer, query, scaling, others.get("softcap")), None
    if module not in step.roles.own:
        raise RuntimeError("an attention layer stands where none was found")
    if isinstance(step, Capture):
        return torch.zeros_like(query).transpose(1, 2), None
    own = _few_own(step, module, query, key, value, scaling, attention_mask, position_bias, others)
    if own is not None:
        return own, None
    if position_bias is None:
        given = attention_mask, scaling, dropout
        return attention.attend(module, query, key, value, *given, draftproof_step=step, **others)
    return _biased(step, step.roles.own[module], query, key, value, scaling), None


def _across(
    step: CrossStep, layer: int, query: Tensor, scaling: float | None, cap: float | None
) -> Tensor:
    """Every row sees all that the encoder made of its own request's input."""
    read = [(seg, *pairs[layer]) for seg, pairs in zip(step.segments, step.across, strict=True)]
    if True not in step.few:
        sizes = [(seg.end - seg.begin, keys.shape[2]) for seg, keys, _ in read]
        step.few[True] = few_rows.few(query, sizes)
    if step.few[True]:
        texts = [Text(s.begin, s.end - s.begin, keys.shape[2], keys, own) for s, keys, own in read]
        found = few_rows.attend(query, texts, scaling, cap=cap)
        if found is not None:
            return found
    pieces = []
    for seg, keys, values in read:
        asked = query[:, :, seg.begin : seg.end]
        if cap is not None:
            pieces.append(_capped(asked, keys, values, scaling, cap).transpose(1, 2))
            continue
        piece = F.scaled_dot_product_attention(
            asked, keys, values, scale=scaling, enable_gqa=asked.shape[1] > keys.shape[1]
        )
        pieces.append(piece.transpose(1, 2))
    return torch.cat(pieces, dim=1)


def _capped(asked: Tensor, keys: Tensor, values: Tensor, scaling: float | None, cap: float) -> Any:
    """(1, heads, rows, head size), with scores that no fused kernel caps."""
    scaling = asked.shape[-1] ** -0.5 if scaling is None else scaling
    keys, values = (
        each.repeat_interleave(asked.shape[1] // each.shape[1], 1) for each in (keys, values)
    )
    scores = torch.tanh(asked @ keys.transpose(-1, -2) * scaling / cap) * cap
    wide = torch.promote_types(asked.dtype, torch.float32)
    return scores.softmax(-1, dtype=wide).to(asked.dtype) @ values


def _few_own(
    step: CrossStep,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    others: Mapping[str, Any],
) -> Tensor | None:
    """Self-attention of few rows in one call; None: it is done otherwise."""
    layer, window = step.roles.own[module], others.get("sliding_window")
    biases = step.roles.tables[layer] if position_bias is not None else None
    if False not in step.few:
        parts = [part for seg in step.segments for part in seg.parts]
        sizes = [(part.end - part.begin, part.slots) for part in parts]
        step.few[False] = few_rows.few(query, sizes)
    if not step.few[False] or step.calls is not None or others.get("s_aux") is not None:
        return None
    if attention_mask is not None and position_bias is None:
        return None
    texts = []
    for seg in step.segments:
        pair = step.cache.pair(layer, seg.row)
        if pair is None or (window is not None and window < seg.slots):
            return None
        for part in seg.parts:
            bias = None
            if biases is not None:
                bias = _known_bias(step, biases, seg, part, query)[0]
            elif not part.chain:
                mask = seg.mask(part, None, query)
                bias = None if mask is None else mask[None]
            rows = part.end - part.begin
            begin = seg.begin + part.begin
            texts.append(Text(begin, rows, part.slots, *pair, part.chain, bias))
    return few_rows.attend(query, texts, scaling, (key, value), others.get("softcap"))


def _biased(
    step: CrossStep, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
) -> Tensor:
    """Self-attention with T5's bias, which the model itself has made for rows in one line."""
    bias, pieces = step.roles.tables[layer], []
    assert bias is not None
    for seg in step.segments:
        span = slice(seg.begin, seg.end)
        step.cache.write(layer, seg.row, seg.at, key[0, :, span], value[0, :, span])
        for part in seg.parts:
            piece = F.scaled_dot_product_attention(
                query[:, :, seg.begin + part.begin : seg.begin + part.end],
                *step.cache.read(layer, seg.row, part.slots),
                attn_mask=_known_bias(step, bias, seg, part, query),
                scale=scaling,
            )
            pieces.append(piece.transpose(1, 2))
    return torch.cat(pieces, dim=1)


def _known_bias(step: CrossStep, bias: Distances, seg: Segment, part: Part, like: Tensor) -> Tensor:
    known = (seg.begin, part, bias)
    if known not in step.biases:
        step.biases[known] = _bias(bias, seg, part, like)
    return step.biases[known]


def _bias(bias: Distances, seg: Segment, part: Part, like: Tensor) -> Tensor:
    """(1, heads, rows, slots): by the distance of positions, and -inf where a row may not look."""
    asking = seg.positions()[part.begin : part.end]
    if len(asking) == 1 and part.slots <= seg.root + 1:  # slots in a line: no gathering, no mask
        return bias.line(-asking[0], part.slots, like)
    places = list(range(seg.root))
    if seg.tree is not None:
        places += [seg.root + depth for depth in seg.tree.depths]
    at = torch.tensor(places[: part.slots]) - torch.tensor(asking)[:, None]
    found = bias.at(at, like)
    mask = seg.mask(part, None, like)
    if mask is not None:
        found = found + (mask.flip(0) if part.chain else mask)
    return found


class Distances:
    """T5's bias by distance, as a module makes it; kept until its weights change."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._reach = 0  # of what is kept: distances -reach ... reach
        self._of: tuple[Any, ...] = ()  # what it was made from
        self._kept = torch.empty(0)  # (heads, 2 * reach + 1)

    def line(self, first: int, count: int, like: Tensor) -> Tensor:
        """(1, heads, 1, count), of the distances first, first + 1, ..."""
        kept = self._made(max(abs(first), abs(first + count)), like)
        at = first + self._reach
        return kept[None, :, None, at : at + count]

    def at(self, distances: Tensor, like: Tensor) -> Tensor:
        """(1, heads, ...), of any distances (...), which lie on the CPU."""
        kept = self._made(int(distances.abs().max()), like)  # no wait for a device
        return kept[:, (distances + self._reach).to(like.device)][None]

    def _made(self, reach: int, like: Tensor) -> Tensor:
        weight = self.module.relative_attention_bias.weight
        version = 0 if weight.is_inference() else weight._version
        of = weight.data_ptr(), version, like.dtype, like.device
        if reach > self._reach or of != self._of:
            self._reach, self._of = max(64, 1 << reach.bit_length()), of
            distances = torch.arange(-self._reach, self._reach + 1, device=like.device)
            self._kept = self._biases(distances[None]).to(like.dtype)[0].T.contiguous()
        return self._kept

    def _biases(self, distances: Tensor) -> Tensor:
        """(1, n, heads)."""
        module, options = self.module, {}
        if "bidirectional" in inspect.signature(module._relative_position_bucket).parameters:
            options = {
                "bidirectional": False,
                "num_buckets": module.relative_attention_num_buckets,
                "max_distance": module.relative_attention_max_distance,
            }
        buckets = module._relative_position_bucket(distances, **options)
        found: Tensor = module.relative_attention_bias(buckets)
        return found


def registered() -> str:
    return attention.known_as(NAME, attend)
