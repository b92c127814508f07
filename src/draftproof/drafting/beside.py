"""A model beside the target: its cache follows a request by what the model ran for it last.

What was committed of its last tree is kept, whatever else was committed is read. Does not know how
a tree is grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.drafting.reading import catch_up, start, waits
from draftproof.runners.base import Target, Work
from draftproof.tree import TokenTree
from draftproof.writing import Writing

PADDING = 1024  # vocabularies that differ by less differ by padding of the embedding matrix


def stranger(rows: int, target_rows: int, own: Any, target: Any) -> str:
    """Where an id of a draft is another token than the target's; "" where none is.

    rows: of their embeddings. own, target: tokenizers; without both, rows are all there is.
    """
    if abs(target_rows - rows) >= PADDING:
        return f"{rows} tokens and {target_rows}"
    if own is None or target is None:
        return ""
    tokens = {at: token for token, at in target.get_vocab().items()}
    for token, at in sorted(own.get_vocab().items(), key=lambda each: each[1]):
        if tokens.get(at, token) != token:
            return f"id {at} is {token!r} there and {tokens[at]!r} in the target"
    return ""


def check_rows(rows: int, target_rows: int, encodes: bool = False) -> None:
    """Refuse a draft whose embeddings are of another vocabulary: `ValueError`."""
    if abs(target_rows - rows) >= PADDING:
        # What an encoder reads is ids, which no text of the output translates.
        mapped = "" if encodes else ", or ForeignDraft (in the shell --any-tokenizer)"
        raise ValueError(
            f"the draft's vocabulary has {rows} tokens and the target's {target_rows}: use a draft "
            f"with the target's tokenizer{mapped}"
        )


@dataclass(slots=True)
class Place:
    """Where the model is in a request's text."""

    length: int  # of the text when it was last caught up with
    rewinds: int  # of the text then
    fits: int = 0  # tokens from the first on that the model has rows for
    tree: TokenTree | None = None  # what lies in its scratch
    told: bool = False  # that it drafts no further


class Beside:
    """A model with a cache of its own that follows requests by what it ran for them."""

    def __init__(self, runner: Target, target: Target) -> None:
        check_rows(runner.vocabulary, target.vocabulary, target.encodes)
        self.runner = runner
        self._places: dict[int, Place] = {}

    def release(self, request: Writing) -> None:
        self.runner.free(request.key)
        self._places.pop(request.key, None)

    def close(self) -> None:
        self._places.clear()
        self.runner.close()

    def room(self, request: Writing) -> int:
        """Tokens that may be drafted: the bonus needs a place, and each of them one here."""
        return min(request.room - 1, self.runner.max_length - len(request.tokens))

    def catch_up(self, requests: Sequence[Writing], ahead: bool = False) -> list[bool]:
        """Keep what was committed of the last trees, read the rest, as far as a step's budget goes.

        Returns for which of them the model can draft now: not behind a token that it has no row
        for, as the target's padding has some, and not beyond its own longest context. ahead: for
        none, the target itself still reads.
        """
        ready = catch_up(self.runner, requests, self._follow, self._stop, ahead)
        return [request.key in ready for request in requests]

    def work(self, request: Writing, tree: TokenTree, ran: int) -> Work:
        """A pass over the nodes from `ran` on, behind all committed tokens."""
        new = [] if ran else request.tokens[self.runner.cached(request.key) : -1]
        return Work(request.key, new, tree, ran, encoder_input=request.encoder_input)

    def ran(self, request: Writing, tree: TokenTree) -> None:
        """All nodes of `tree` lie in its scratch."""
        self._places[request.key].tree = tree

    def _follow(self, request: Writing, before: Sequence[int], ahead: bool) -> list[int] | None:
        """Keep of the last tree what was committed; the text, if the model can draft behind it."""
        runner, key, tokens = self.runner, request.key, request.tokens
        if (place := self._places.get(key)) is None:
            if waits(runner, request, before, len(request.prompt), ahead):
                return None
            start(runner, request, tokens, lambda sibling: len(request.prompt))
            place = self._places[key] = Place(runner.cached(key), request.rewinds)
        same = min(place.length, request.shortest(place.rewinds))
        place.length, place.rewinds = len(tokens), request.rewinds
        tree, place.tree = place.tree, None
        if (cached := runner.cached(key)) > min(same, len(tokens) - 1):
            # A draft was drafted for, and then rejected.
            cached, tree = min(same, len(tokens) - 1), None
            runner.crop(key, cached)
        if tree is not None and (path := along(tree, tokens[cached:-1])):
            runner.keep(key, path)
        place.fits = min(place.fits, same)
        while place.fits < len(tokens) and tokens[place.fits] < runner.vocabulary:
            place.fits += 1
        why = ""
        if len(tokens) >= runner.max_length:
            why = f"its context ends at {runner.max_length} tokens"
        elif place.fits < len(tokens):
            why = f"it has no row for token id {tokens[place.fits]}"
        if why and not place.told:
            place.told = True
            request.warnings.append(f"a draft model drafts no further: {why}")
        return None if why else tokens

    def _stop(self, request: Writing, error: Exception) -> None:
        self.release(request)
        request.stop_drafting(error)


def along(tree: TokenTree, tokens: Sequence[int]) -> list[int]:
    """The path from node 0 on whose tokens are the first of `tokens`, as far as there is one."""
    path: list[int] = []
    nodes: Sequence[int] = [0]
    for token in tokens:
        node = next((node for node in nodes if tree.tokens[node] == token), None)
        if node is None:
            break
        path.append(node)
        nodes = tree.children(node)
    return path
