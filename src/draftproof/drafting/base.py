"""The protocol of a drafting method.

A proposer sees requests and returns a token tree for each. It can be slow or stupid; unless it
lies in `TokenTree.laws` it cannot make the output wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from draftproof.runners.base import Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class Proposer(Protocol):
    """A drafting method: any object with these two names, and what follows if it has it.

    wants_best: whether it wants the target's argmax after every node in `request.feedback`.
    bind(target): called once, before the first step; refuses what cannot work (`ValueError`).
    read_along(requests): the target still reads their prompts in this step; a model of its own may
        read along, at most as much as the target does in a step.
    release(request): the request has ended, or goes on without this proposer.
    close(): nothing is drafted any more; caches are let go of. It may be bound again.
    """

    taps: tuple[int, ...]  # target layers whose hidden states it wants in `request.feedback`

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        """One tree per request, in order; node 0 is `request.tokens[-1]`."""
        ...


def alone(request: Writing) -> bool:
    """Whether a request's trees may depend on nothing but itself.

    Where coins, or what is typical, accept a drawn token, another tree is another text. The same
    seed shall give the same one, so neither clocks nor other requests may have a say.
    """
    return not request.races


def bind(proposer: Proposer, target: Target) -> None:
    """Call the hook if there is one."""
    _call(proposer, "bind", target)


def read_along(proposer: Proposer, requests: Sequence[Writing]) -> None:
    """Call the hook if there is one."""
    _call(proposer, "read_along", requests)


def release(proposer: Proposer, request: Writing) -> None:
    """Call the hook if there is one."""
    _call(proposer, "release", request)


def close(proposer: Proposer) -> None:
    """Call the hook if there is one."""
    _call(proposer, "close")


def _call(proposer: Proposer, name: str, *given: Any) -> None:
    hook = getattr(proposer, name, None)
    if hook is not None:
        hook(*given)
