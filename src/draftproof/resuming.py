"""Texts that were cut go on: who may, and with what. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.request import Request


def go_on(requests: Sequence[Request], vocabulary: int) -> None:
    """The completions of one prompt, each behind its tokens in `SamplingParams.resume`.

    One may be at its end at once. Raises `ValueError` where what follows is not determined, or what
    is given was never written.
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
            if why := _never(request, token, vocabulary):
                raise ValueError(f"resume holds token id {token} at position {at}, {why}")
            request.rewrite(token)
        if request.text is not None:
            request.shown = len(request.text.take())


def _never(request: Request, token: int, vocabulary: int) -> str:
    """Why a token cannot have been written where a request is; "" where it can."""
    params, history, by = request.params, request.history, ""
    if not 0 <= token < vocabulary:
        return f"and the vocabulary ends at {vocabulary - 1}"
    if request.finished:
        return f"and the text ended before it ({request.finish_reason})"
    if token in params.bad_token_ids:
        by = "bad_token_ids"
    elif history.length < params.min_tokens and token in request.stop_ids:
        by = "min_tokens"
    elif history.guide is not None and not history.guide.allows(history.output, (), token):
        by = "the grammar"
    return by and f"which {by} keeps from being written there"
