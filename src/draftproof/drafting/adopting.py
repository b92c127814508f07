"""A proposer that is no `Drafter` is made one: what it does not have it gets from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from draftproof.drafting.base import Drafter, Proposer
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

WANTED = "a list of one TokenTree per request, such as TokenTree.chain(request.tokens[-1:])"


class Foreign(Drafter):
    """A proposer that is no `Drafter`, and what it has of one."""

    def __init__(self, proposer: Proposer) -> None:
        self.name = type(proposer).__name__
        self.proposer, self.taps = proposer, proposer.taps
        self.wants_best = bool(getattr(proposer, "wants_best", False))
        self.observes = bool(getattr(proposer, "observes", False))

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        trees: object = self.proposer.propose(requests)
        if not isinstance(trees, Iterable):
            raise ValueError(f"propose returned {_a(trees)}: return {WANTED}")
        given = list(trees)
        if len(given) != len(requests):
            raise ValueError(
                f"propose returned {len(given)} for {len(requests)} requests: return {WANTED}"
            )
        pairs = zip(requests, given, strict=True)
        return [each if isinstance(each, TokenTree) else _none(to, each) for to, each in pairs]

    def bind(self, target: Target, load: Load) -> None:
        self._call("bind", target)

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        self._call("observe", request, position, hidden)

    def read_along(self, requests: Sequence[Writing]) -> None:
        self._call("read_along", requests)

    def release(self, request: Writing) -> None:
        self._call("release", request)

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str, *given: Any) -> None:
        hook = getattr(self.proposer, name, None)
        if hook is not None:
            hook(*given)


def _a(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"


def _none(request: Writing, found: object) -> TokenTree:
    """For what is no tree; the trees of others may have been drawn, and count."""
    request.stop_drafting(ValueError(f"propose made {_a(found)} of a request: return {WANTED}"))
    return TokenTree.chain(request.tokens[-1:])


def refuse_untapped(proposer: object) -> None:
    """Raises `ValueError` for a proposer that lacks `taps` alone."""
    if hasattr(proposer, "propose") and not hasattr(proposer, "taps"):
        raise ValueError(
            f"{type(proposer).__name__} has propose but no taps: write taps = () into the class "
            "if it wants no hidden states"
        )


def adopt(proposer: Proposer) -> Drafter:
    """The proposer, with defaults for what it does not have. Raises `ValueError` for none."""
    refuse_untapped(proposer)
    if not hasattr(proposer, "propose"):
        raise ValueError(
            "what drafts is a method such as dp.NGram(), and no "
            f"{type(proposer).__name__}: of a model write dp.DraftModel(model)"
        )
    return proposer if isinstance(proposer, Drafter) else Foreign(proposer)


def bind(proposer: Proposer, target: Target, load: Load) -> None:
    """Its own `bind`. Raises `ValueError` for taps on layers that the target has not."""
    drafter = adopt(proposer)
    drafter.bind(target, load)
    last = target.layers
    for tap in drafter.taps:
        if not isinstance(tap, int) or not -last - 1 <= tap <= last:
            raise ValueError(
                f"taps of {drafter.name} holds {tap!r}: of this model they are 0 (the embeddings) "
                f"to {last} (what the LM head reads), or -1 for the last"
            )
