"""The noise of coupled sampling: E ~ Exp(1) as a function of (seed, stream, position, token id).

Bit-equal on any device and in any language: an integer hash with a counter (Philox4x32-10), then
one fixed float64 evaluation of -log1p(-u). Does not know logits, or what is picked with it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from draftproof.sampling import compiled as fast
from draftproof.sampling.params import SamplingParams

_MASK = 0xFFFFFFFF
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: int, k1: int) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Counter words are ints or int64 tensors of one shape. An int64 product wraps, which keeps its
    64 bits; only the words that are multiplied next need to be masked back to 32.
    """
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = p1 >> 32
        c0 ^= c1
        c0 ^= k0
        c0 &= _MASK
        c2 = p0 >> 32
        c2 ^= c3
        c2 ^= k1
        c2 &= _MASK
        c1, c3 = p1, p0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def _words(seed: int, stream: int, position: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    """The four 32-bit words of ids 4 * block .. 4 * block + 3."""
    return _philox(block, position, stream, 0, seed & _MASK, seed >> 32)


def _words_of(seed: int, stream: int, position: int, ids: Tensor) -> Tensor:
    """The word of each id, in the shape of `ids`."""
    every = torch.stack(_words(seed, stream, position, ids >> 2))  # (4, *ids.shape)
    return every.gather(0, (ids & 3)[None])[0]


def _exponential(word: Any) -> Any:
    """E = -log1p(-u), u = (word + 1/2) / 2**32, of a float or a float64 tensor of words.

    1 - u is exact. Its log is 2 atanh(s) by the power series, s = f / (2 + f), 1 + f in
    [sqrt(1/2), sqrt(2)): only + - * / and exact steps, one rounding each (no fma), so that any
    language gives the same bits. Relative error below 1e-15, at the smallest u too.
    """
    v = (4294967295.5 - word) * 2.0**-32  # 1 - u
    m: Any
    e: Any
    m, e = torch.frexp(v) if isinstance(v, Tensor) else math.frexp(v)
    if isinstance(e, Tensor):
        e = e.double()
    low = m < _SQRT_HALF
    m = m + m * low
    e = e - 1.0 * low
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = z * (1.0 / 19.0)
    for k in range(17, 1, -2):
        series += 1.0 / k
        series *= z
    series += 1.0
    return -(e * _LN2 + (s + s) * series)


def noise(seed: int, stream: int, position: int, ids: Tensor | int) -> Tensor:
    """E ~ Exp(1), float64, of each id at (seed, stream, position); an int n means ids 0..n-1.

    The same bits for any subset and order of the ids, on any device. Shape of `ids`, or (n,).
    """
    if isinstance(ids, int):
        block = torch.arange((ids + 3) // 4)
        words = torch.stack(_words(seed, stream, position, block), dim=-1).flatten()[:ids]
    else:
        words = _words_of(seed, stream, position, ids)
    result: Tensor = _exponential(words.double())
    return result


def mix(seed: int, j: int) -> int:
    """The seed of completion `j` of n: splitmix64's output function, but `mix(seed, 0) == seed`."""
    if j == 0:
        return seed
    bits = 2**64 - 1
    z = (seed + j * 0x9E3779B97F4A7C15) & bits
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & bits
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & bits
    return z ^ (z >> 31)


class Noise:
    """The noise of one (seed, stream), with the last positions kept.

    Target and drafts ask for the same positions within a step. What is kept is g = -log(u) in
    float32: an upper bound of the race's Gumbel -log(E), up to rounding. The exact E is computed
    only for the few tokens that can still win.
    """

    positions = 32  # kept at most, and no more than `elements` floats of them
    elements = 2**22

    def __init__(self, seed: int, stream: int) -> None:
        self.seed, self.stream = seed, stream
        self._kept: dict[int, Tensor] = {}  # position -> (V,) float32, the oldest first

    def forget(self, before: int | None = None) -> None:
        """Free what is kept of the positions before that one, of all if None.

        It is made again if it is asked for.
        """
        if before is None:
            self._kept.clear()
        for position in [at for at in self._kept if before is not None and at < before]:
            del self._kept[position]

    def exact(self, position: int, token: int) -> float:
        """E of one token: the same bits as `noise`."""
        words = _words(self.seed, self.stream, position, token >> 2)
        result: float = _exponential(float(words[token & 3]))
        return result

    def race(
        self, logits: Tensor, params: SamplingParams, position: int, k: int, mass: bool
    ) -> fast.Raced | None:
        """The k best ids of what the parameters leave of a row (V,), and their scaled logits.

        Best first; and, where `mass` asks for it, the log of the mass of all that is left. None
        where there is no compiled race for such a row: `chain` has it in torch.
        """
        where = self.seed, self.stream, position, k
        if params.whole:
            return fast.race(logits, params.temperature, *where, mass)
        return fast.race_cut(logits, params, *where)

    def gumbel(self, position: int, vocabulary: int, ids: Tensor | None = None) -> Tensor:
        """g = -log(u) >= -log(E) of all ids below `vocabulary`, or of `ids` (K,); float32."""
        kept = self._kept.get(position)
        if kept is None or len(kept) < vocabulary:
            if ids is not None and vocabulary > 2**14 and len(ids) < vocabulary // 8:
                return _bound(_words_of(self.seed, self.stream, position, ids).float())
            self._fill(position, vocabulary)
            kept = self._kept[position]
        return kept[:vocabulary] if ids is None else kept[ids]

    def _fill(self, position: int, vocabulary: int) -> None:
        row = fast.gumbel(self.seed, self.stream, position, vocabulary)
        if row is not None:
            self._keep({position: row})
            return
        blocks = (vocabulary + 3) // 4
        ahead = max(1, min(8, 2**14 // blocks))  # small rows: calls cost more than arithmetic
        block = torch.arange(blocks).repeat(ahead)
        where = torch.arange(position, position + ahead).repeat_interleave(blocks)
        rows = torch.empty(ahead * blocks, 4)
        for w, word in enumerate(_words(self.seed, self.stream, where, block)):
            rows[:, w] = word
        every = _bound(rows).view(ahead, -1)
        self._keep({position + i: row for i, row in enumerate(every)})

    def _keep(self, rows: dict[int, Tensor]) -> None:
        for position, row in rows.items():
            self._kept.pop(position, None)
            self._kept[position] = row
        room = max(len(rows), min(self.positions, self.elements // len(row)))
        while len(self._kept) > room:
            del self._kept[next(iter(self._kept))]


def _bound(words: Tensor) -> Tensor:
    return words.add_(0.5).mul_(2.0**-32).log_().neg_()
