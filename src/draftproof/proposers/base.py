"""The protocol of a drafting method.

A proposer sees requests and returns a token tree for each. It can be slow or stupid; unless it
lies in `TokenTree.laws` it cannot make the output wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.request import Request
from draftproof.runners.base import Target
from draftproof.tree import TokenTree


class Proposer(Protocol):
    """A drafting method: any object with these two names, and what follows if it has it.

    wants_best: whether it wants the target's argmax after every node in `request.feedback`.
    bind(target): called once, before the first step; refuses what cannot work (`ValueError`).
    release(request): the request has ended, or goes on without this proposer.
    """

    taps: tuple[int, ...]  # target layers whose hidden states it wants in `request.feedback`

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        """One tree per request, in order; node 0 is `request.tokens[-1]`."""
        ...


def bind(proposer: Proposer, target: Target) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "bind", None)
    if hook is not None:
        hook(target)


def release(proposer: Proposer, request: Request) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "release", None)
    if hook is not None:
        hook(request)


def read_along(proposer: Proposer, requests: Sequence[Request]) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "read_along", None)
    if hook is not None:
        hook(requests)


def close(proposer: Proposer) -> None:
    """Call the hook if there is one."""
    hook = getattr(proposer, "close", None)
    if hook is not None:
        hook()
