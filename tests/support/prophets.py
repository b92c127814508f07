"""Requests for the engine, and a drafter that knows what comes."""

from __future__ import annotations

from typing import Any

from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from fakes import Table, Wild, request, run


def solo(each: Request, seed: int = 0) -> list[int]:
    """What a request like `each` writes alone, without drafts."""
    made = Request(each.key, each.prompt, each.params, seed=each.seed, max_length=each.max_length)
    made.stop_ids = set(each.stop_ids)
    run(Engine(Table(seed), scheduler=Scheduler(1)), [made])
    return made.output


class Prophet(Wild):
    """Drafts what plain decoding is known to write, `length` tokens of it."""

    def __init__(self, futures: dict[int, list[int]], length: int = 6) -> None:
        super().__init__(0)
        self.futures, self.length = futures, length

    def grow(self, request: Request) -> TokenTree:
        done = len(request.output)
        ahead = self.futures[request.key][done : done + self.length]
        return TokenTree.chain([request.tokens[-1], *ahead])


def prophecy(each: Request, **changes: Any) -> tuple[Request, list[int]]:
    long = request(each.key, each.prompt, each.seed, temperature=1.0, max_tokens=60)
    return each, solo(long)
