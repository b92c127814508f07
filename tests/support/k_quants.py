"""A slow, plain quantiser to Q4_K, Q5_K and Q6_K, which the library of the format's makers lacks.

Rounds to nearest between the ends of each sub-block: any file that is valid serves the tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def quantise(values: Floats, kind: str) -> Bytes:
    """(rows, inputs) -> (rows, bytes); inputs are a multiple of 256."""
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    made = _q6(blocks) if kind == "Q6_K" else _with_minima(blocks, {"Q4_K": 15, "Q5_K": 31}[kind])
    return made.reshape(values.shape[0], -1)


def _half(values: Floats) -> Bytes:
    """(blocks, 2)"""
    return values.astype(np.float16)[:, None].view(np.uint8)


def _ratio(values: Floats, over: Floats) -> Floats:
    return np.divide(values, over, out=np.zeros_like(values), where=over != 0)


def _with_minima(blocks: Floats, most: int) -> Bytes:
    parts = blocks.reshape(-1, 8, 32)
    least = np.minimum(parts.min(2), 0)
    scales, minima = (np.maximum(parts.max(2), 0) - least) / most, -least
    d, dmin = (
        (each.max(1) / 63).astype(np.float16).astype(np.float32) for each in (scales, minima)
    )
    sixes = np.rint(_ratio(scales, np.broadcast_to(d[:, None], scales.shape))).clip(0, 63)
    lows = np.rint(_ratio(minima, np.broadcast_to(dmin[:, None], minima.shape))).clip(0, 63)
    each = (d[:, None] * sixes)[..., None]
    shifted = parts + (dmin[:, None] * lows)[..., None]
    q = np.rint(_ratio(shifted, np.broadcast_to(each, parts.shape))).clip(0, most).astype(np.uint8)
    s, m = sixes.astype(np.uint8), lows.astype(np.uint8)
    packed = [
        s[:, :4] | (s[:, 4:] >> 4) << 6,
        m[:, :4] | (m[:, 4:] >> 4) << 6,
        (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
    ]
    halves = q.reshape(-1, 4, 2, 32)
    nibbles = (halves[:, :, 0] & 15) | (halves[:, :, 1] & 15) << 4
    fifth = [np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], 1)]
    high = fifth if most == 31 else []
    return np.concatenate([_half(d), _half(dmin), *packed, *high, nibbles.reshape(-1, 128)], 1)


def _q6(blocks: Floats) -> Bytes:
    parts = blocks.reshape(-1, 16, 16)
    scales = np.abs(parts).max(2) / 31
    d = (scales.max(1) / 127).astype(np.float16).astype(np.float32)
    eights = np.rint(_ratio(scales, np.broadcast_to(d[:, None], scales.shape))).clip(0, 127)
    each = np.broadcast_to((d[:, None] * eights)[..., None], parts.shape)
    q = (np.rint(_ratio(parts, each)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        [(q[:, :, 0] & 15) | (q[:, :, 2] & 15) << 4, (q[:, :, 1] & 15) | (q[:, :, 3] & 15) << 4], 2
    )
    high = np.bitwise_or.reduce((q >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], 2)
    whole = [low.reshape(-1, 128), high.reshape(-1, 64), eights.astype(np.uint8), _half(d)]
    return np.concatenate(whole, 1)
