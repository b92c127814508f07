"""The protocol of a drafting method.

A proposer sees requests and returns a token tree for each. It can be slow or stupid; unless it
lies in `TokenTree.laws` it cannot make the output wrong.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NoReturn, Protocol

from torch import Tensor

from draftproof.foreign_names import explaining
from draftproof.kinds import numbers_checked
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class Partial(Protocol):
    """A tree while it grows: its tokens, parents and scores so far, node 0 first."""

    @property
    def request(self) -> Writing: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def scores(self) -> Sequence[float]: ...


GoesOn = Callable[[Sequence[Partial]], Sequence[bool]]  # which of them get another level


class Proposer(Protocol):
    """A drafting method: any object with these two names, and hooks as `adopting.Foreign` has."""

    taps: tuple[int, ...]  # target layers whose hidden states it wants in `request.feedback`

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        """One tree per request, in order; node 0 is `request.tokens[-1]`."""
        ...


class Drafter:
    """A drafting method with everything that is optional, as ours are."""

    name = "a method of yours"
    taps: tuple[int, ...] = ()
    wants_best = False  # the target's argmax after every node, in `request.feedback`
    observes = False  # the states of all committed tokens, by `observe`
    stepwise = False  # it drafts level by level, and asks before each whether another one pays
    # What `Auto` reckons with at first: passes of the target over one token that a call takes, or a
    # level of a stepwise one; how often a token is right if those before it are; of that chance's
    # odds slope and intercept over those of the score, and what a doubling of the depth adds.
    drafting_cost, promise, trust = 0.0, 0.5, (1.0, 0.0, 0.0)
    needs = ""  # the parameter of sampling that it drafts from, if it does: what a request brings
    yields = ""  # the method beside whose tokens it offers no other ones, which are hardly right
    glanced = False  # one token (`useful` is 1) takes next to nothing, and it may be asked twice
    useful = sys.maxsize  # nodes of a tree that can pay in this step, said by who asks

    def __init_subclass__(cls) -> None:
        """What a method is made with is checked, and explained to who comes from elsewhere."""
        if "__init__" in vars(cls):
            cls.__init__ = numbers_checked(cls.__init__)  # type: ignore[method-assign]
            explaining(cls)

    def __repr__(self) -> str:
        """Its name, and what it was made with beside the defaults."""
        own, asked = vars(self), inspect.signature(type(self)).parameters
        known = {n: own[n] for n, each in asked.items() if own.get(n) not in (None, each.default)}
        return f"{type(self).__name__}({', '.join(f'{n}={_brief(x)}' for n, x in known.items())})"

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: transformers calls a `custom_generate` that it can call, ignoring any other."""
        raise TypeError(
            f"{type(self).__name__} drafts, and does not generate: wrap it, "
            f"custom_generate=dp.custom_generate(dp.{type(self).__name__}(...))"
        )

    @property
    def next_taps(self) -> tuple[int, ...]:
        """What is wanted of the pass behind this step: less than `taps` where it will not draft."""
        return self.taps

    def serves(self, request: Writing) -> bool:
        """Whether it can be of use to a text, among others that draft for it."""
        return not self.needs or getattr(request.params, self.needs) is not None

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        """See `Proposer`."""
        raise NotImplementedError

    def idle(self, requests: Sequence[Writing]) -> bool:
        """Whether nothing is proposed for them in this step; then `propose` is not called."""
        return False

    def propose_within(self, requests: Sequence[Writing], goes_on: GoesOn) -> list[TokenTree]:
        """As `propose`; where it is stepwise, as deep as `goes_on` says before each level."""
        return self.propose(requests)

    def bind(self, target: Target, load: Load) -> None:
        """Called once, before the first step; refuses what cannot work (`ValueError`).

        load(target, model) makes a runner for another model beside the target; a proposer that is
        no `Drafter` is called with the target alone.
        """

    def observe(self, request: Writing, position: int, hidden: Mapping[int, Tensor]) -> None:
        """States that the target committed, prompts included: what a cache of one's own is made of.

        hidden: tapped layer -> (n, hidden size), of the tokens from `position` on. Every token
        comes once, in order; from an earlier position on again where a pass had to be made anew.
        """

    def read_along(self, requests: Sequence[Writing]) -> None:
        """The target still reads their prompts in this step.

        A model of its own may read along, at most as much as the target does in a step.
        """

    def release(self, request: Writing) -> None:
        """The request has ended, or goes on without this drafter."""

    def close(self) -> None:
        """Nothing is drafted any more: let go of caches. It may be bound again."""


def alone(request: Writing) -> bool:
    """Whether a request's trees may depend on nothing but itself.

    Where coins, or what is typical, accept a drawn token, another tree is another text. The same
    seed shall give the same one, so neither clocks nor other requests may have a say.
    """
    return not request.races


def _brief(value: Any) -> str:
    """A number, a name, a drafter, a list of these; of anything else its name or kind."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, int | float | str | PurePath | Drafter):
        return repr(str(value) if isinstance(value, PurePath) else value)
    return str(getattr(value, "name", type(value).__name__))
