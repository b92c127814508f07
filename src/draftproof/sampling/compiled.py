"""The chain natively: what `noise` and `chain` do in torch, with the same result.

Every function answers None where it cannot do what is asked, and the caller's own code does it. One
call, no thread: a row of logits is too little work to share, and threads of torch that wait for
more would take a core from the pass that comes next.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_int32
from typing import Any

import torch
from torch import Tensor

from draftproof.native import Cut, found
from draftproof.sampling.params import SamplingParams

Raced = tuple[list[int], list[float], float]  # ids, best first, scaled logits, log of a mass
_MASK = 0xFFFFFFFF


def gumbel(seed: int, stream: int, position: int, vocabulary: int) -> Tensor | None:
    """-log(u), float32, of at least the ids below `vocabulary`."""
    library = found()
    if library is None or max(stream, position) > _MASK:
        return None
    blocks = (vocabulary + 3) // 4
    row = torch.empty(4 * blocks)
    library.dp_gumbel(seed, stream, position, blocks, row.data_ptr())
    return row


def race(
    logits: Tensor, temperature: float, seed: int, stream: int, position: int, k: int, mass: bool
) -> Raced | None:
    """The k best of a row (V,), their scaled logits, and log of the mass of the whole row.

    temperature 0: the best logits, as at temperature 1. mass: whether that is wanted; else 0 stands
    there. None for a row that is not float32 on the CPU, and for one that nothing can be picked
    from.
    """
    return _raced("dp_race", logits, temperature, (seed, stream, position), k, mass)


def survivors(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor] | None:
    """`chain.survivors` of a row of which something is cut off.

    None as for `race`, and where a border is so near that only sums in torch's order tell.
    """
    library, V = found(), len(logits)
    if library is None or not _fits(logits):
        return None
    ids, scaled = torch.empty(V, dtype=torch.int64), torch.empty(V, dtype=torch.float64)
    where = ids.data_ptr(), scaled.data_ptr()
    count = library.dp_survivors(logits.data_ptr(), V, byref(_cut(params)), *where)
    return None if count < 0 else (ids[:count].clone(), scaled[:count].clone())


def race_cut(
    logits: Tensor, params: SamplingParams, seed: int, stream: int, position: int, k: int
) -> Raced | None:
    """`race` among the survivors; the log is of their mass. None as for them."""
    return _raced("dp_race_cut", logits, byref(_cut(params)), (seed, stream, position), k, True)


def _raced(
    call: str, logits: Tensor, how: Any, where: tuple[int, int, int], k: int, mass: bool
) -> Raced | None:
    """where: seed, stream and position, of which the last two have 32 bits."""
    library, V = found(), len(logits)
    if library is None or not _fits(logits) or max(where[1:]) > _MASK:
        return None
    k = min(k, V)
    ids, scaled, log_mass = (c_int32 * k)(), (c_double * k)(), c_double()
    made = k, ids, scaled, byref(log_mass) if mass else None
    count = getattr(library, call)(logits.data_ptr(), V, how, *where, *made)
    return None if count < 0 else (ids[:count], scaled[:count], log_mass.value)


def _fits(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.is_contiguous()


def _cut(params: SamplingParams) -> Cut:
    return Cut(params.temperature, params.top_p, params.floor, params.top_k)
