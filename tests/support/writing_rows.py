"""A runner that writes rows of its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from draftproof.runners import kv
from draftproof.runners.base import Work
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree


@cache
def model() -> PreTrainedModel:
    return tiny.model(dtype=torch.float64, max_position_embeddings=4096)


def some(seed: int, count: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(3, tiny.VOCABULARY) for _ in range(count)]


@torch.inference_mode()
def write(runner: TorchRunner, key: int, prompt: Sequence[int], count: int = 4) -> list[int]:
    """The prompt in slices, then greedily `count` tokens, by trees whose kept path is no chain."""
    tokens = list(prompt)
    while len(tokens) - 1 - runner.cached(key) > 512:
        at = runner.cached(key)
        runner.forward([Work(key, tokens[at : at + 512], None)])
    while len(tokens) < len(prompt) + count:
        tree = TokenTree([tokens[-1], 5, 6], [-1, 0, 0])
        (output,) = runner.forward([Work(key, tokens[runner.cached(key) : -1], tree)])
        first = int(output.logits[0].argmax())
        tree = TokenTree([tokens[-1], 5, first], [-1, 0, 0])
        (output,) = runner.forward([Work(key, [], tree)])
        runner.keep(key, [0, 2])
        tokens += [first, int(output.logits[2].argmax())]
    return tokens[len(prompt) :]


def slots(runner: TorchRunner, key: int) -> int:
    return runner._cache._held[runner._cache.rows[key]].slots


@pytest.fixture
def refuse_tensor(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """refuse_tensor(n): the n-th tensor that the cache asks for is not there; counts so far."""
    real = kv._copied

    def refuse(number: int) -> list[int]:
        asked = [0]

        def copied(old: torch.Tensor, slots: int) -> torch.Tensor:
            asked[0] += 1
            if asked[0] == number:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return real(old, slots)

        monkeypatch.setattr(kv, "_copied", copied)
        return asked

    return refuse
