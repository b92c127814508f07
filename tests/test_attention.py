"""Packed attention against its slow twin, and the memory that it takes."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import attending
from draftproof.runners import attention
from draftproof.runners.attention import Step
from draftproof.runners.kv import KVCache
from draftproof.runners.segments import Segment
from draftproof.tree import TokenTree

SIZE = 4  # of a head
FORK = TokenTree([0] * 9, [-1, 0, 1, 0, 3, 3, 2, 5, 0])


def draws(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@torch.inference_mode()
def filled(heads: int, slots: int, room: int, dtype: torch.dtype = torch.float64) -> KVCache:
    """A cache whose only row, of key 0, holds so many slots already."""
    cache = KVCache(1, room)
    row = cache.reserve(0, slots)
    if slots:
        at = draws(1, 2, heads, slots, SIZE, dtype=dtype)
        cache.write(0, row, 0, at[0], at[1])
    return cache


@torch.inference_mode()
def attended(
    cache: KVCache, segment: Segment, query: Tensor, fresh: Tensor, **options: Any
) -> Tensor:
    """What the model is given back for one request's rows, (T, heads, size)."""
    cache.reserve(0, segment.slots)
    (made, _) = attention.attend(
        SimpleNamespace(layer_idx=0),  # type: ignore[arg-type]
        query[None],
        fresh[0][None],
        fresh[1][None],
        None,
        draftproof_step=Step([segment], cache),
        **options,
    )
    return made[0]


CASES: dict[str, tuple[int, int, TokenTree | None, int]] = {  # cached, fresh, tree, first
    "a token": (37, 0, TokenTree.chain([0]), 0),
    "a first token": (0, 0, TokenTree.chain([0]), 0),
    "a prompt": (0, 50, None, 0),
    "a slice": (37, 50, None, 0),
    "a slice and a node": (37, 20, TokenTree.chain([0]), 0),
    "a short chain": (37, 0, TokenTree.chain([0] * 5), 0),
    "a long chain": (37, 3, TokenTree.chain([0] * 40), 0),
    "a chain that grows": (37, 0, TokenTree.chain([0] * 20), 12),
    "a tree": (37, 0, FORK, 0),
    "a tree behind a slice": (37, 44, FORK, 0),
    "a tree behind a prompt": (0, 44, FORK, 0),
    "a tree that grows": (37, 0, FORK, 3),
    "a wide tree": (37, 0, TokenTree([0] * 40, [-1] + [0] * 20 + [5] * 19), 0),
}


@pytest.mark.parametrize("how", ["plain", "capped", "sinks"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("window", [None, 3, 30, 4096])
@pytest.mark.parametrize("case", CASES)
def test_every_row_sees_its_past_and_nothing_else(
    case: str, window: int | None, groups: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES", 4 * 87 * 7)  # so that blocks are cut
    cached, fresh, tree, first = CASES[case]
    rows = fresh + (len(tree) - first if tree is not None else 0)
    at = cached + fresh + first if first else cached
    cache = filled(2, at, 200)
    segment = Segment(0, rows, 0, cached, fresh, tree, first)
    query, new = draws(2, 2 * groups, rows, SIZE), draws(3, 2, 2, rows, SIZE)
    options = {
        "plain": {},
        "capped": {"softcap": 0.7},
        "sinks": {"s_aux": draws(4, 2 * groups)},
    }[how]
    made = attended(cache, segment, query, new, scaling=0.6, sliding_window=window, **options)
    keys, values = cache.read(0, 0, segment.slots)
    wanted = attending.attention(
        query,
        keys[0],
        values[0],
        attending.slots_seen(cached, fresh, tree, first, window),
        0.6,
        options.get("softcap"),
        options.get("s_aux"),
    )
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 40])
def test_a_prompt_in_slices_is_the_prompt_at_once(window: int | None) -> None:
    rng, rows = Random(0), 300
    query, new = draws(2, 8, rows, SIZE), draws(3, 2, 2, rows, SIZE)
    whole = attended(
        KVCache(1, 400), Segment(0, rows, 0, 0, rows, None, 0), query, new, sliding_window=window
    )
    cache, pieces, at = KVCache(1, 400), [], 0
    while at < rows:
        end = min(rows, at + rng.choice([1, 2, 7, 64, 100]))
        segment = Segment(0, end - at, 0, at, end - at, None, 0)
        part = query[:, at:end], new[:, :, at:end]
        pieces.append(attended(cache, segment, *part, sliding_window=window))
        at = end
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """The bytes of the largest memory that any operation's result lies in."""

    bytes = 0

    def __torch_dispatch__(
        self, function: Any, kinds: Any, given: Any = (), more: Any = None
    ) -> Any:
        made = function(*given, **(more or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(each, Tensor):
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("how", ["plain", "window", "capped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slice_far_back_takes_little_memory(dtype: torch.dtype, how: str) -> None:
    slots, rows, heads = 32_000, 512, 4
    cache = filled(1, slots - rows, slots, dtype)
    segment = Segment(0, rows, 0, slots - rows, rows, None, 0)
    query = draws(2, heads, rows, SIZE, dtype=dtype)
    new = draws(3, 2, 1, rows, SIZE, dtype=dtype)
    options: dict[str, Any] = {
        "plain": {},
        "window": {"sliding_window": 4096},
        "capped": {"softcap": 0.7},
    }[how]
    with Largest() as largest:
        attended(cache, segment, query, new, **options)
    assert largest.bytes < 20e6  # a mask of all heads has 131 MB in half precision
    if how != "capped":  # where what the kernel takes for itself counts too
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            attended(cache, segment, query, new, **options)
        taken = [each.self_cpu_memory_usage for each in seen.events()]
        assert sum(size for size in taken if size > 0) < 20e6


def test_a_mask_lies_where_its_layer_is() -> None:
    """Layers of one model may be on several devices."""
    for tree in (FORK, TokenTree.chain([0] * 5)):
        segment = Segment(0, len(tree), 0, 7, 0, tree, 0)
        for device in ("cpu", "meta", "cpu"):
            like = torch.empty(1, device=device)
            mask = segment.mask(segment.parts[0], None, like)
            assert mask is not None and mask.device == like.device
