"""Attention in half precision on torch: a row's bits, whatever stands beside it and where.

The oracle of bits is plain decoding, one token of one text in a pass, by the same kernel; that of
numbers is attention in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof as dp
from all_trees import random_tree
from draftproof import native
from draftproof.runners import half, half_attention
from draftproof.runners.base import Work
from draftproof.runners.kv import KVCache
from draftproof.runners.segments import Segment
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree
from forwarding import CONFIGS, V, build

BOTH = pytest.mark.parametrize("dtype", half.HALF)


@torch.inference_mode()
def attended(
    rng: Random,
    dtype: torch.dtype,
    size: int,
    window: int | None = None,
    cap: float | None = None,
    before: Sequence[int] = (0, 1, 30, 200),
) -> tuple[Tensor, Tensor]:
    """Packed rows of three texts by the kernel, and in float64."""
    key_heads, groups = rng.choice([(1, 1), (2, 3), (3, 1)])
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    trees = [random_tree(rng, 3, rng.choice([1, 5, 9])) for _ in range(3)]
    cache, segments, begin = KVCache(3, 10_000), [], 0
    for key, tree in enumerate(trees):
        cached, fresh = rng.choice(before), rng.choice([0, 1, 9])
        first = 0 if fresh else rng.randrange(len(tree))
        end = begin + fresh + len(tree) - first
        row = cache.reserve(key, cached + fresh + len(tree))
        segments.append(Segment(begin, end, row, cached, fresh, tree, first))
        begin = end
        there = torch.randn(2, key_heads, segments[-1].slots, size, generator=generator).to(dtype)
        cache.write(0, row, 0, there[0], there[1])
    query = torch.randn(1, begin, key_heads * groups, size, generator=generator).to(dtype)
    query, scaling = query.transpose(1, 2), rng.choice([None, 0.3])
    got = half_attention.attend(segments, cache, 0, query, scaling, window, cap)
    assert got is not None
    rows = []
    for seg in segments:
        assert seg.tree is not None
        keys, values = (each[0].double() for each in cache.read(0, seg.row, seg.slots))
        places = torch.tensor([*range(seg.root), *(seg.root + d for d in seg.tree.depths)])
        for own in range(seg.at, seg.slots):
            seen = torch.arange(seg.slots) <= own
            if own >= seg.root:
                seen[seg.root :] = seg.tree.ancestors()[own - seg.root]
            if window is not None:
                seen &= places > places[own] - window
            q = query[0, :, seg.begin + own - seg.at].double().unflatten(0, (key_heads, groups))
            scores = q @ keys.transpose(1, 2) * (scaling or size**-0.5)
            scores = scores if cap is None else torch.tanh(scores / cap) * cap
            shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            rows.append((shares @ values).flatten(0, 1))
    return got, torch.stack(rows)[None]


def is_attention(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype is dtype and got.shape == want.shape
    unit = torch.finfo(dtype).eps
    assert torch.allclose(got.double(), want, rtol=unit, atol=unit / 100)


@BOTH
@pytest.mark.parametrize("size", [16, 64, 80, 112, 256, 512])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (1, None), (7, None), (64, 1.5)])
def test_it_is_attention(
    each_kernel: bytes, dtype: torch.dtype, size: int, window: int | None, cap: float | None
) -> None:
    for seed in range(3):
        is_attention(*attended(Random(seed), dtype, size, window, cap), dtype)


@BOTH
@pytest.mark.parametrize("window", [None, 4000])
def test_long_texts_go_by_some_rows_at_a_time(
    each_kernel: bytes, dtype: torch.dtype, window: int | None
) -> None:
    for seed in range(4):
        is_attention(*attended(Random(seed), dtype, 32, window, None, [5000, 9000]), dtype)


@BOTH
def test_threads_change_no_bit(each_kernel: bytes, dtype: torch.dtype) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found.append([attended(Random(seed), dtype, 48, 99)[0] for seed in range(3)])
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, found[0] * 3, [one for each in found[1:] for one in each]))


@BOTH
def test_what_a_row_does_not_see_may_be_infinite(each_kernel: bytes, dtype: torch.dtype) -> None:
    """Values before its window, and of drafts that are not on its path."""
    cache, tree = KVCache(1, 64), TokenTree([3, 4, 5, 6], [-1, 0, 0, 1])
    generator, infinite = torch.Generator().manual_seed(3), [0, 9, 11]
    with torch.inference_mode():
        row = cache.reserve(0, 13)
        keys, values = torch.randn(2, 1, 13, 16, generator=generator).to(dtype)
        query = torch.randn(1, 1, 4, 16, generator=generator).to(dtype)
        found = []
        for value in (0.0, torch.inf):
            values[:, infinite] = value
            cache.write(0, row, 0, keys, values)
            segment = Segment(0, 4, row, 9, 0, tree, 0)
            found.append(half_attention.attend([segment], cache, 0, query, None, 2))
    none, some = (each[0] for each in found if each is not None)
    assert torch.equal(none[3], some[3]) and none.isfinite().all()
    assert [bool(each.isfinite().all()) for each in some] == [False, False, False, True]


@BOTH
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "mistral"])
def test_logits_are_those_of_plain_decoding(
    each_kernel: bytes, dtype: torch.dtype, family: str
) -> None:
    """Bit for bit: prompts of few tokens, trees of several texts, whole paths and parts kept."""
    config = CONFIGS[family]()
    config.head_dim = 16
    config.final_logit_softcapping = None  # torch's tanh of 97 numbers ends in no whole register
    model, rng = build(config, dtype), Random(5)
    runner, alone = TorchRunner(model, max_batch=3), Alone(model)
    texts = {key: [rng.randrange(3, V) for _ in range(4 * key + 1)] for key in range(3)}
    with torch.inference_mode():
        for _ in range(5):
            works = []
            for key, text in texts.items():
                tree = random_tree(rng, text[-1], rng.choice([1, 3, 8]))
                works.append(Work(key, text[runner.cached(key) : -1], tree))
            for item, output in zip(works, runner.forward(works), strict=True):
                assert item.tree is not None
                for i in range(len(item.tree)):
                    nodes = [item.tree.tokens[j] for j in item.tree.path(i)]
                    want = alone.logits(item.key, [*texts[item.key][:-1], *nodes])
                    assert torch.equal(output.logits[i], want), (item.key, i)
                path = item.tree.path(rng.randrange(len(item.tree)))
                runner.keep(item.key, path)
                texts[item.key] += [*(item.tree.tokens[i] for i in path[1:]), rng.randrange(3, V)]


class Alone:
    """Plain decoding: passes over one token of one text."""

    def __init__(self, model: Any) -> None:
        self.runner = TorchRunner(model, max_batch=3)
        self.written: dict[int, list[int]] = {}

    def logits(self, key: int, text: list[int]) -> Tensor:
        """(V), behind the text."""
        before = self.written.get(key, [])
        same = [i for i, (a, b) in enumerate(zip(before, text[:-1], strict=False)) if a != b]
        common = same[0] if same else min(len(before), len(text) - 1)
        if before:
            self.runner.crop(key, common)
        for token in text[common:]:
            (output,) = self.runner.forward([Work(key, [], TokenTree.root(token))])
            self.runner.keep(key, [0])
        self.written[key] = text
        return output.logits[0]


@BOTH
def test_every_way_to_draft_writes_the_same(kernel: None, dtype: torch.dtype) -> None:
    """Texts that repeat themselves and one that does not, together and alone."""
    config = CONFIGS["llama"]()
    config.head_dim = 16
    params = dp.SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = [[3 + 7 * i % 11 for i in range(9)], [5, 6, 5, 6, 5], [9]]
    model = build(config, dtype)
    with dp.LLM(model, runner="torch", speculate=None) as llm:
        plain = [llm.generate([each], params)[0].token_ids for each in prompts]
    for method in ("ngram", "suffix", "lookahead", "ngram+suffix", "auto"):
        with dp.LLM(model, runner="torch", speculate=method) as llm:
            assert [one.token_ids for one in llm.generate(prompts, params)] == plain, method


@torch.inference_mode()
def step(
    heads: int = 1, size: int = 16, dtype: torch.dtype = torch.bfloat16
) -> tuple[list[Segment], KVCache, Tensor]:
    """One row behind three others."""
    cache = KVCache(1, 64)
    row = cache.reserve(0, 4)
    generator = torch.Generator().manual_seed(1)
    keys, query = torch.randn(2, heads, 4, size, generator=generator).to(dtype)
    cache.write(0, row, 0, keys, keys)
    return [Segment(0, 1, row, 3, 0, TokenTree.root(3), 0)], cache, query[None, :, :1]


def test_what_it_does_not_do_is_left_to_torch(
    kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, cache, query = step()
    assert half_attention.attend(segments, cache, 0, query) is not None
    for other in (query[..., ::2], query.half(), query.float()):
        assert half_attention.attend(segments, cache, 0, other) is None
    for size in (8, 24, 528):
        assert half_attention.attend(*step(size=size)[:2], 0, step(size=size)[2]) is None
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert half_attention.attend(segments, cache, 0, query) is None


def test_it_says_that_there_is_no_memory(kernel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "attention", lambda *given: lambda *given: native.NO_MEMORY)
    segments, cache, query = step()
    with pytest.raises(MemoryError, match="lower max_batch"):
        half_attention.attend(segments, cache, 0, query)


def test_what_does_not_fit_is_refused_by_the_library(each_kernel: bytes) -> None:
    library = native.library()
    fastest = library.dp_halves_set(half.SETS[0], False)
    _, cache, query = step()
    keys, out = cache.read(0, 0, 4)[0], torch.zeros(1, 1, 1, 16).bfloat16()
    paths, ends = (torch.tensor(each, dtype=torch.int32) for each in ([3], [1]))
    of: dict[str, Any] = {"heads": 1, "key_heads": 1, "size": 16, "window": 0, "scale": 1.0}
    of |= {"q": query.data_ptr(), "out": out.data_ptr(), "q_head": 16, "q_row": 16}
    text = {"begin": 0, "rows": 1, "before": 3, "keys": keys.data_ptr(), "values": keys.data_ptr()}
    text |= {"head": keys.stride(1), "slot": 16, "paths": paths.data_ptr(), "ends": ends.data_ptr()}

    def code(threads: int = 1, count: int = 1, chosen: int = fastest, **change: int) -> int:
        given = half_attention._Attention(**(of | {k: v for k, v in change.items() if k in of}))
        table = (ctypes.c_int64 * len(text))(*(change.get(name, at) for name, at in text.items()))
        where = ctypes.addressof(given), ctypes.addressof(table)
        found: int = library.dp_half_rows(chosen, None, threads, *where, count)
        return found

    wrong = [{name: 0} for name in ("heads", "key_heads", "size", "q", "out", "rows", "keys")]
    wrong += [{name: 0} for name in ("values", "paths", "ends", "threads", "count", "chosen")]
    wrong += [{"size": 8}, {"size": 528}, {"key_heads": 2}, {"window": -1}]
    wrong += [{"begin": -1}, {"before": -1}, {"rows": -1}]
    assert {code(**change) for change in wrong} == {native.BAD_ARGUMENT} and not out.any()
    ends[0] = 0
    assert code() == native.BAD_ARGUMENT
    ends[0] = 1
    assert code() == native.OK and out.any()
    chain = out.clone()
    assert code(paths=0, ends=0) == native.OK and torch.equal(out, chain)
