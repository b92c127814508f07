"""What a look-up remembers of each request's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from draftproof.writing import Writing


class Sized(Protocol):
    @property
    def size(self) -> int:
        """Tokens of the text that are in it."""
        ...


T = TypeVar("T", bound=Sized)


class Own(Generic[T]):
    """One of its own for each request, made when it is first asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._known: WeakKeyDictionary[Writing, tuple[T, int]] = WeakKeyDictionary()

    def of(self, request: Writing) -> tuple[T, int, Sequence[int]]:
        """The request's own, how many of the tokens in it the text still begins with, the rest.

        Of an encoder-decoder the text begins with what the encoder read. It only grows, unless it
        is a draft's, which may have been rejected.
        """
        made, rewinds = self._known.get(request) or (self._make(), -1)
        if rewinds != request.rewinds:
            self._known[request] = made, request.rewinds
        before = request.before
        # Most texts were never rolled back.
        stays = request.shortest(max(rewinds, 0)) if request.rewinds else len(request.tokens)
        known = min(made.size, len(before) + stays)
        kept = known - len(before)
        more = request.tokens[kept:] if kept >= 0 else [*before[known:], *request.tokens]
        return made, known, more

    def release(self, request: Writing) -> bool:
        """Whether there was one."""
        return self._known.pop(request, None) is not None

    def clear(self) -> None:
        self._known.clear()
