"""Texts that were cut go on: who may, and with what. Knows no engine; how is the request's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.request import Request


def go_on(requests: Sequence[Request], vocabulary: int) -> None:
    """The completions of one prompt, each behind its tokens in `SamplingParams.resume`.

    Raises `ValueError` where what follows is not determined, or what is given was never written.
    """
    each: Any = requests[0].params.resume  # made a tuple for each by then
    for request, written in zip(requests, each, strict=True):
        if written and not request.races:
            raise ValueError(
                f"resume cannot go on exactly under the rule {request.rule.name!r}, where another "
                "draft is another text: use the rule 'coupled', or temperature 0"
            )
        if (most := request.room) < len(written):
            raise ValueError(
                f"resume holds {len(written)} tokens, and the text has to end behind {most}"
            )
        for at, token in enumerate(written):
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"resume holds token id {token} at position {at}, and the vocabulary ends at "
                    f"{vocabulary - 1}"
                )
        request.go_on(written)
