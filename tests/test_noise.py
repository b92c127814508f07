"""The noise behind every draw: known answers, independence, bounds."""

from __future__ import annotations

import math
import struct
from collections import Counter

import pytest
import torch

from chi_square import chi_square_p
from draftproof.sampling import (
    Noise,
    mix,
)
from draftproof.sampling import noise as noises
from draftproof.sampling.noise import noise


@pytest.mark.parametrize(
    ("counter", "key", "known"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter: str, key: str, known: str) -> None:
    """Random123's kat_vectors, philox4x32-10, with ints and with tensors."""
    c, k, answer = ([int(w, 16) for w in text.split()] for text in (counter, key, known))
    assert list(noises._philox(*c, *k)) == answer
    words = noises._philox(*(torch.tensor([w, 1]) for w in c), *k)
    assert [int(w[0]) for w in words] == answer


def test_the_counter_is_block_position_stream() -> None:
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    e = [-math.log1p(-(w + 0.5) / 2**32) for w in words]
    assert noise(0, 0, 0, 4).tolist() == pytest.approx(e, rel=1e-14)
    seed = 0x299F31D0_A4093822
    block, position, stream = 7, 2**31 - 1, 2**32 - 1
    words = list(noises._philox(block, position, stream, 0, 0xA4093822, 0x299F31D0))
    e = [-math.log1p(-(w + 0.5) / 2**32) for w in words]
    assert noise(seed, stream, position, 32)[28:].tolist() == pytest.approx(e, rel=1e-14)


def test_exponential_is_accurate_at_every_size_and_the_same_for_one_and_many() -> None:
    words = [0, 1, 2, 3, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2, 2**32 - 129]
    words += [int(2**32 * (1 - 2**-0.5)) + d for d in range(-3, 4)]  # where the reduction changes
    words += [2**k + d for k in range(2, 32) for d in (-1, 0, 1)]
    words += torch.randint(2**32, (20000,), generator=torch.Generator().manual_seed(0)).tolist()
    many = noises._exponential(torch.tensor(words, dtype=torch.float64)).tolist()
    for word, e in zip(words, many, strict=True):
        assert e == noises._exponential(float(word))
        assert e == pytest.approx(-math.log1p(-(word + 0.5) / 2**32), rel=1e-15)
    # bits that another language has to reproduce
    bits = [struct.pack(">d", noises._exponential(float(w))).hex() for w in (0, 2**31, 2**32 - 1)]
    assert bits == KNOWN_BITS


KNOWN_BITS = ["3de0000000040000", "3fe62e42ff1a39ef", "4036dfb516f20bbe"]


def test_noise_is_the_same_for_any_subset_and_order() -> None:
    for V in (1, 3, 4, 1001):
        whole = noise(5, 2, 9, V)
        assert whole.shape == (V,) and whole.dtype == torch.float64
        ids = torch.randperm(V, generator=torch.Generator().manual_seed(V))
        assert torch.equal(noise(5, 2, 9, ids), whole[ids])
        assert torch.equal(noise(5, 2, 9, ids[: V // 2 + 1]), whole[ids[: V // 2 + 1]])
        assert [Noise(5, 2).exact(9, i) for i in range(V)] == whole.tolist()
    square = torch.tensor([[3, 1], [999, 3]])
    assert torch.equal(noise(5, 2, 9, square), whole[square])


def test_every_coordinate_changes_all_noise_and_nothing_is_correlated() -> None:
    base = (7, 0, 100)
    others = [(8, 0, 100), (7 + 2**32, 0, 100), (7, 1, 100), (7, 0, 101), (7, 2**32 - 1, 100)]
    e = noise(*base, 20000)
    counts = Counter((20 * (-e).exp()).int().tolist())
    assert chi_square_p(counts, dict.fromkeys(range(20), 1 / 20)) > 1e-5
    for other in others:
        f = noise(*other, 20000)
        assert not (e == f).any()
        assert abs(float(torch.corrcoef(torch.stack((e, f)))[0, 1])) < 0.03


def test_noise_object_bounds_its_own_exact_values_whatever_was_asked_before() -> None:
    for V in (100, 5000, 40000):
        kept, fresh = Noise(3, 1), Noise(3, 1)
        for position in (5, 4, 6, 200, 5, 40):
            g = kept.gumbel(position, V)
            assert g.shape == (V,)
            u = -torch.expm1(-noise(3, 1, position, V))
            assert torch.allclose(g.double(), -u.log(), atol=1e-6)
            ids = torch.arange(3, V, max(1, V // 50))
            assert torch.allclose(fresh.gumbel(position, V, ids), g[ids], atol=1e-6)
        assert torch.equal(kept.gumbel(5, V - 7), kept.gumbel(5, V + 9)[: V - 7])


def test_noise_object_keeps_a_bounded_number_of_positions() -> None:
    source = Noise(0, 0)
    for position in range(100):
        source.gumbel(position, 64)
    assert len(source._kept) <= Noise.positions
    source = Noise(0, 0)
    source.elements = 3 * 40000
    for position in range(5):
        source.gumbel(position, 40000)
    assert list(source._kept) == [2, 3, 4]


def test_mix() -> None:
    seeds = [0, 1, 2, 2**64 - 1]
    mixed = [mix(s, j) for s in seeds for j in range(100)]
    assert len(set(mixed)) == len(mixed) and all(0 <= m < 2**64 for m in mixed)
    assert [mix(s, 0) for s in seeds] == seeds
    assert mix(0, 1) == 0xE220A8397B1DCDAF  # splitmix64's first output from state 0
