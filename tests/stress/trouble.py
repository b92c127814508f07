"""What goes wrong under the crowd: a tokenizer that raises, drafters that fail or wait, no room."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

from draftproof.drafting import adopting
from draftproof.request import Request
from draftproof.runners import choice, kv, native
from draftproof.tree import TokenTree

MUTE = 95  # the tokenizer raises for it


LETTERS = "abcdefghij klmnop"


class Speller:
    """A tokenizer of one or two letters per token, which knows one token too few."""

    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3 + LETTERS.index(letter) for letter in text]}

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        if MUTE in ids:
            raise KeyError("no letter for this")
        return "".join(LETTERS[i % 17] + (LETTERS[i % 5] if i % 3 else "") for i in map(int, ids))


class Trouble:
    """A proposer that works, waits, fails, or drafts what may not be drafted, at random."""

    taps: tuple[int, ...] = ()

    def __init__(self, inner: Any, rng: Random) -> None:
        self.inner, self.rng, self.faults = adopting.adopt(inner), rng, True
        self.wants_best = self.inner.wants_best

    def bind(self, target: Any) -> None:
        self.inner.bind(target, choice.beside)

    def read_along(self, requests: Sequence[Request]) -> None:
        self.inner.read_along(requests)

    def release(self, request: Request) -> None:
        self.inner.release(request)
        if self.faults and self.rng.random() < 0.02:
            raise RuntimeError("a drafter that fails")

    def close(self) -> None:
        self.inner.close()

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        dice = self.rng.random() if self.faults else 1.0
        if dice < 0.02:
            raise RuntimeError("a drafter that fails")
        if dice < 0.04:
            time.sleep(0.002)
        if dice < 0.06:
            return [TokenTree.chain([each.tokens[-1], 10**6]) for each in requests]
        trees: list[TokenTree] = self.inner.propose(requests)
        return trees


class Scarce:
    """Memory for keys and values that now and then is not there, for all runners of a process."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.refuses = rng, True
        for storage in (kv.KVCache, native.NativeRows):
            storage.reserve = self.refusing(storage.reserve)  # type: ignore[method-assign]

    def refusing(self, real: Any) -> Any:
        def reserve(rows: Any, key: int, slots: int) -> Any:
            if self.refuses and self.rng.random() < 0.01:
                raise MemoryError("no room, as was planted")
            return real(rows, key, slots)

        return reserve
