"""One run over what grows for several requests, of which some may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

G = TypeVar("G")  # what grows
T = TypeVar("T")  # what a run gives it


def passed(
    growing: Sequence[G],
    run: Callable[[Sequence[G]], Sequence[T]],
    stop: Callable[[G, Exception], None],
) -> Iterator[tuple[G, T]]:
    """Each with what one run over all gave it; where that fails, each alone.

    One request's fault is not the others'. What was drawn for it before stays in its tree: dropping
    that because of what it was would bias the law. What a run gave is used before the next one: it
    may lie in memory that a model's next pass writes to.
    """
    if not growing:
        return
    try:
        made = list(zip(growing, run(growing), strict=True))
    except Exception as error:  # of a model, which is foreign code
        if len(growing) == 1:
            stop(growing[0], error)
            return
        for one in growing:
            yield from passed([one], run, stop)
        return
    yield from made
