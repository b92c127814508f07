"""Defects that are planted in an engine which is sound, and the pair of models they are planted in.

Each takes a `MonkeyPatch`; the names say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof import certify as certificates
from draftproof import request, rules, sampling
from draftproof import verify as verification
from draftproof.certify import Certificate
from draftproof.drafting.growth import Growth
from draftproof.proposers.specinfer import SpecInfer
from draftproof.runners.attention import Segment
from draftproof.runners.base import Output, Work
from draftproof.runners.committed import Committed
from draftproof.runners.torch import TorchRunner
from draftproof.tree import TokenTree

RNG = Random(0)
PROMPTS = [[RNG.randrange(3, 97) for _ in range(5 + 6 * i)] for i in range(4)]


@cache
def target() -> PreTrainedModel:
    """Weights of a usual size: with larger ones rounding grows from layer to layer."""
    return tiny.model("llama", initializer_range=0.1, num_hidden_layers=2)


@cache
def draft() -> PreTrainedModel:
    return tiny.relative(target(), 0.3)


def methods() -> dict[str, Callable[[], Any]]:
    """With siblings enough to show that they are told apart."""
    return {"draft": lambda: dp.DraftModel(draft(), 5, min_confidence=0.0, branch=6)}


def certify(llm: dp.LLM | None = None, **options: Any) -> Certificate:
    options = {"max_tokens": 14, "runs": 40, "contexts": 1, **options}
    return certificates.certify(
        llm or dp.LLM(target(), speculate=None), methods(), PROMPTS[1:3], **options
    )


def wrong_residual(patch: pytest.MonkeyPatch) -> None:
    """A rejected token is replaced from p and not from norm((p - q)+)."""
    whole = verification._round

    def round_(tree: TokenTree, u: int, p: Tensor, coins: list[float]) -> tuple[Tensor, int | None]:
        _, accepted = whole(tree, u, p, coins)
        return p, accepted

    patch.setattr(verification, "_round", round_)


def shared_noise(patch: pytest.MonkeyPatch) -> None:
    """The coins come from the stream that the draft drew from."""
    patch.setattr(rules, "VERIFIER", 0)

    def generator(self: request.Request, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed % 2**63)

    patch.setattr(request.Request, "generator", generator)


def lying_law(patch: pytest.MonkeyPatch) -> None:
    """The draft draws from one law and tells another."""
    whole = sampling.draw_distinct

    def draw(p: Tensor, k: int, rng: torch.Generator) -> tuple[list[int], list[Tensor]]:
        ids, laws = whole(p, k, rng)
        return ids, [each.pow(2) / each.pow(2).sum() for each in laws]

    patch.setattr(sampling, "draw_distinct", draw)


def not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Of the tree's scratch the first nodes are kept, whichever were accepted."""
    whole = Committed.keep

    def keep(self: Committed, key: int, path: Sequence[int]) -> None:
        whole(self, key, range(len(path)))

    patch.setattr(Committed, "keep", keep)


def wrong_position(patch: pytest.MonkeyPatch) -> None:
    """A sibling stands behind the one before it."""

    def positions(self: Segment) -> list[int]:
        nodes = 0 if self.tree is None else len(self.tree)
        return [*range(self.cached, self.root), *range(self.root + self.first, self.root + nodes)]

    patch.setattr(Segment, "positions", positions)


def foreign_penalty(patch: pytest.MonkeyPatch) -> None:
    """A node's history holds its siblings too."""
    patch.setattr(TokenTree, "path_tokens", lambda self, i: list(self.tokens[1 : i + 1]))


def wrong_row(patch: pytest.MonkeyPatch) -> None:
    """The bonus is picked after the token before it."""
    whole = verification.verify

    def verify(
        tree: TokenTree, picks: Any, ends: verification.Ends
    ) -> tuple[list[int], int | None]:
        path, bonus = whole(tree, picks, ends)
        return path, bonus if bonus is None or len(path) < 2 else picks[path[-2]]

    patch.setattr(rules, "verify", verify)


def end_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """Stop tokens are looked for at the end of a step only."""
    whole = request.Request.write

    def write(
        self: request.Request, token: int, logits: Tensor, node: int, drafted: bool = False
    ) -> bool:
        stops, self.stop_ids = self.stop_ids, set() if drafted else self.stop_ids
        ended = whole(self, token, logits, node, drafted)
        self.stop_ids = stops
        return ended

    patch.setattr(request.Request, "write", write)


def failing_drafter(patch: pytest.MonkeyPatch) -> None:
    """Its trees are never made."""

    def fail(self: Growth) -> TokenTree:
        raise RuntimeError("boom")

    patch.setattr(Growth, "tree", fail)


def undrawn_siblings(patch: pytest.MonkeyPatch) -> None:
    """A group of siblings is the likeliest tokens, and not drawn from the law it tells."""
    whole = SpecInfer._draw

    def children(
        self: SpecInfer, number: int, of: Growth, path: Any, row: Tensor, count: int
    ) -> Any:
        ids, shares, laws = whole(self, number, of, path, row, count)
        if laws and count > 1:
            ids = laws[0].topk(count).indices.tolist()
        return ids, shares, laws

    patch.setattr(SpecInfer, "_draw", children)


def wrong_bonus(patch: pytest.MonkeyPatch) -> None:
    """The token after the accepted ones is the least likely one, which top_k excludes."""
    whole = verification.verify_rejection

    def verify(
        tree: TokenTree, p: Any, rng: torch.Generator, ends: verification.Ends
    ) -> tuple[list[int], int | None]:
        path, bonus = whole(tree, p, rng, ends)
        return path, bonus if bonus is None else int(p[path[-1]].argmin())

    patch.setattr(rules, "verify_rejection", verify)


def off_rows(patch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Passes over more than one node give other logits."""
    whole = TorchRunner.forward

    def forward(self: TorchRunner, work: Sequence[Work], *rest: Any, **more: Any) -> list[Output]:
        return [
            replace(output, logits=change(output.logits))
            if item.tree is not None and len(item.tree) > 1
            else output
            for item, output in zip(work, whole(self, work, *rest, **more), strict=True)
        ]

    patch.setattr(TorchRunner, "forward", forward)


def assert_whole(seen: list[tuple[str, float]]) -> None:
    """What a certificate told of its progress: parts by name, shares that rise to all."""
    names, shares = zip(*seen, strict=True)
    assert all(names) and [*shares] == sorted(shares)
    assert shares[0] == 0 and abs(shares[-1] - 1) < 1e-9
