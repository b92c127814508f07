"""One run over what grows for several requests, of which some may fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

G = TypeVar("G")  # what grows
T = TypeVar("T")  # what a run gives it


def passed(
    growing: Sequence[G],
    run: Callable[[Sequence[G]], Sequence[T]],
    stop: Callable[[G, Exception], None],
) -> list[tuple[G, T]]:
    """Each with what one run over all gave it; where that fails, each alone.

    One request's fault is not the others'. What was drawn for it before stays in its tree: dropping
    that because of what it was would bias the law.
    """
    if not growing:
        return []
    try:
        return list(zip(growing, run(growing), strict=True))
    except Exception as error:  # of a model, which is foreign code
        if len(growing) > 1:
            return [each for one in growing for each in passed([one], run, stop)]
        stop(growing[0], error)
        return []
