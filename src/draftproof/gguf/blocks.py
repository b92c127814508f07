"""Blocks of weights as floating-point numbers: the commonest formats, on all threads.

The library of the format's makers does the others, and is what the tests compare these with: the
same numbers, an order of magnitude later. Arithmetic is float32, operation by operation as theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BYTE = torch.uint8


def _half(blocks: Tensor, at: int) -> Tensor:
    """(blocks, 1) A number of 16 bits at a byte of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """(blocks, 2 n) Four bits each: the low ones of all bytes, then the high ones."""
    return torch.cat([packed & 15, packed >> 4], 1)


def _bits(packed: Tensor) -> Tensor:
    """(blocks, 32) The fifth bits of elements, 4 or 0 as they stand: one of four bytes each."""
    shifts = torch.arange(8, dtype=BYTE)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    fives = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6])
    return _half(blocks, 0) * (fives.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    fives = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8])
    return _half(blocks, 0) * fives.float() + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks, 8, 1) Scales and minima of six bits, out of twelve bytes."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([low & 63, (high & 15) | ((low >> 2) & 48)], 1)
    minima = torch.cat([middle & 63, (high >> 4) | ((middle >> 2) & 48)], 1)
    return scales.float().unsqueeze(-1), minima.float().unsqueeze(-1)


def _with_minima(blocks: Tensor, numbers: Tensor) -> Tensor:
    """Of a block of eight times 32 numbers, which begins with a scale and a minimum."""
    scales, minima = _scales(blocks[:, 4:16])
    each = _half(blocks, 0).unsqueeze(-1) * scales
    less = _half(blocks, 2).unsqueeze(-1) * minima
    return (each * numbers.view(-1, 8, 32).float() - less).flatten(1)


def _in_eights(packed: Tensor) -> Tensor:
    """(blocks, 256) Four bits each: of every 32 bytes the low ones, then the high ones."""
    quarters = packed.view(-1, 4, 1, 32)
    return torch.cat([quarters & 15, quarters >> 4], 2).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    return _with_minima(blocks, _in_eights(blocks[:, 16:].contiguous()))


def _q5_k(blocks: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=BYTE).view(1, 8, 1)
    fifth = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1).flatten(1) << 4
    return _with_minima(blocks, _in_eights(blocks[:, 48:].contiguous()) | fifth)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].contiguous().view(-1, 2, 1, 64)
    fours = torch.cat([low & 15, low >> 4], 2).flatten(1)
    high = blocks[:, 128:192].contiguous().view(-1, 2, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=BYTE).view(1, 1, 4, 1)
    twos = ((high >> shifts) & 3).flatten(1) << 4
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    each = (_half(blocks, 208) * scales).unsqueeze(-1)
    return (each * ((fours | twos).float() - 32).view(-1, 16, 16)).flatten(1)


KINDS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {  # bytes of a block
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
AT_ONCE = 1 << 22  # bytes that are unpacked together: they and their numbers stay in the caches


def numbers(kind: str, data: Tensor) -> Tensor:
    """(elements,) in float32, of the bytes of a whole tensor (uint8)."""
    size, unpack = KINDS[kind]
    blocks = data.view(-1, size)
    step = max(1, AT_ONCE // size)
    return torch.cat([unpack(part).flatten() for part in blocks.split(step)])
