"""Attention of an encoder that reads inputs of any lengths in one row, each seeing itself alone.

Nothing is padded: an input's rows are what they are when it is read alone, up to the order of
additions. Where a model's encoder does more between rows than this attention, it is not read so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftproof.runners import attention

NAME = "draftproof-spanning"
MOST = 512  # tokens of a row: beyond, a pass takes longer than a few more calls, and a bias grows

T = TypeVar("T")


class Unknown(ValueError):
    """What an encoder asks of its attention, and what cannot be done for a row of inputs."""


@dataclass(slots=True)
class Spans:
    """One pass: the rows begin..end of each input. called: by how many layers."""

    of: Sequence[tuple[int, int]]
    called: int = 0


_SPANS: ContextVar[Spans | None] = ContextVar("spans", default=None)


def during(spans: Spans, call: Callable[[], T]) -> T:
    """`call`, which runs the encoder under `NAME`, over such a row."""
    return attention.during(_SPANS, spans, call)


def attend(
    module: nn.Module,
    query: Tensor,  # (1, heads, T, head size)
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,  # (1, heads, T, T), by distance in the row
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The registered function; returns (1, T, heads, head size) as transformers expects."""
    spans = _SPANS.get()
    if spans is None:
        raise RuntimeError(attention.ELSEWHERE)
    spans.called += 1
    odd = attention_mask, sliding_window, softcap, others.get("s_aux")
    if any(each is not None for each in odd) or query.shape[2] != spans.of[-1][1]:
        raise Unknown("a mask, a window, a cap, or rows of another number")
    pieces = []
    for begin, end in spans.of:
        bias = None if position_bias is None else position_bias[:, :, begin:end, begin:end]
        piece = F.scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, begin:end],
            value[:, :, begin:end],
            attn_mask=bias,
            scale=scaling,
            enable_gqa=query.shape[1] > key.shape[1],
        )
        pieces.append(piece.transpose(1, 2))
    return torch.cat(pieces, dim=1), None


def registered() -> str:
    return attention.known_as(NAME, attend)
