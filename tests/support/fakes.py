"""A runner without a model, proposers that draft at random, and a loop that looks at the books."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

import draftproof as dp
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.tree import TokenTree

V = 13


class Table:
    """A runner without a model: logits are a function of the last two tokens.

    Keeps the committed tokens of every key and asserts that nothing is kept that was not written,
    nothing written that is not committed, and that no row outlives its request.
    """

    vocabulary, max_length = V, 10_000
    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self, seed: int = 0, poison: Callable[[int, int], bool] | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = 3 * torch.randn(V, V, V, generator=generator, dtype=torch.float64)
        self.committed: dict[int, list[int]] = {}
        self.scratch: dict[int, TokenTree] = {}
        self.poison = poison or (lambda key, length: False)
        self.passes: list[dict[int, int]] = []  # per pass: packed tokens of each key

    def row(self, before: Sequence[int]) -> Tensor:
        return self.table[before[-2] if len(before) > 1 else 0, before[-1]]

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        assert work, "an empty pass"
        assert len({item.key for item in work}) == len(work)
        self.passes.append({w.key: len(w.new) + (len(w.tree) if w.tree else 0) for w in work})
        outputs = []
        for item in work:
            assert item.first == 0
            assert item.new or item.tree is not None, "a turn in which nothing is done"
            tokens = self.committed.setdefault(item.key, [])
            tokens += item.new
            self.scratch.pop(item.key, None)  # what was not kept is gone
            rows = []
            if item.tree is not None:
                self.scratch[item.key] = item.tree
                for i in range(len(item.tree)):
                    before = [*tokens, *(item.tree.tokens[j] for j in item.tree.path(i))]
                    rows.append(self.row(before).clone())
                    if self.poison(item.key, len(before)):
                        rows[-1][3] = torch.nan
            outputs.append(Output(torch.stack(rows) if rows else torch.empty(0, V)))
        return outputs

    def cached(self, key: int) -> int:
        return len(self.committed.get(key, ()))

    def keep(self, key: int, path: Sequence[int]) -> None:
        tree = self.scratch.pop(key)  # a second keep without a pass is an error
        assert list(path) == tree.path(path[-1]), "not a path from node 0"
        self.committed[key] += [tree.tokens[node] for node in path]

    def crop(self, key: int, length: int) -> None:
        del self.committed[key][length:]
        self.scratch.pop(key, None)

    def free(self, key: int) -> None:
        self.committed.pop(key, None)
        self.scratch.pop(key, None)

    def fork(self, key: int, source: int, length: int) -> bool:
        assert key not in self.committed and length <= len(self.committed[source])
        self.committed[key] = self.committed[source][:length]
        return True

    def hand_over(self, key: int, heir: int, length: int) -> bool:
        assert heir not in self.committed
        self.committed[heir] = self.committed.pop(key)[:length]
        self.scratch.pop(key, None)
        return True

    def check(self, keys: set[int]) -> None:
        assert self.committed.keys() <= keys and self.scratch.keys() <= keys


class Wild:
    """Random trees: right tokens, wrong ones, repeated siblings, too deep, of one node."""

    taps: tuple[int, ...] = ()

    def __init__(self, seed: int, truth: Table | None = None) -> None:
        self.rng, self.truth = Random(seed), truth
        self.released: list[Request] = []

    def bind(self, target: Any) -> None: ...

    def release(self, request: Request) -> None:
        self.released.append(request)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        return [self.grow(request) for request in requests]

    def grow(self, request: Request) -> TokenTree:
        rng, tokens, parents = self.rng, [request.tokens[-1]], [-1]
        paths = [[*request.tokens]]
        for _ in range(rng.choice([0, 1, 4, 9])):
            parent = rng.choice([len(tokens) - 1, rng.randrange(len(tokens))])
            token = rng.randrange(V)
            if self.truth is not None and rng.random() < 0.8:
                token = int(self.truth.row(paths[parent]).argmax())
            tokens.append(token)
            parents.append(parent)
            paths.append([*paths[parent], token])
        return TokenTree(tokens, parents)


def request(key: int, prompt: Sequence[int], seed: int = 0, **options: Any) -> Request:
    extra = {
        name: options.pop(name) for name in ("end_ids", "max_length", "siblings") if name in options
    }
    params = dp.SamplingParams(**{"max_tokens": 20, **options})
    return Request(key, prompt, params, seed=seed, **extra)


def books_are_right(runner: Table, requests: Sequence[Request]) -> None:
    """What is committed is what was written, all but the last token."""
    for each in requests:
        committed = runner.committed.get(each.key)
        if each.finished:
            assert committed is None, "a row outlives its request"
        elif committed is not None and len(committed) >= len(each.prompt) - 1:
            assert committed == each.tokens[:-1] or len(each.output) == 0
            assert len(committed) == len(each.tokens) - 1
        elif committed is not None:
            assert committed == each.prompt[: len(committed)]


def run(engine: Engine, requests: Sequence[Request], limit: int = 2000) -> None:
    for each in requests:
        engine.add(each)
    for _ in range(limit):
        if all(each.finished for each in requests):
            return
        engine.step()
        books_are_right(engine.runner, requests)
        engine.check()
    raise AssertionError("it never ends")


def look_ups(earlier: Sequence[int], **options: Any) -> tuple[dp.NGram, dp.SuffixAutomaton]:
    """Both, behind a text of another request, which wrote these tokens."""
    drafters = dp.NGram(**options), dp.SuffixAutomaton(**options)
    for drafter in drafters:
        drafter.bind(None, None)  # type: ignore[arg-type]
    before = request(99, [0])
    drafters[1].propose([before])
    before.tokens += earlier
    drafters[1].release(before)
    return drafters
