"""A model beside the target: its cache follows a request by what the model ran for it last.

What was committed of its last tree is kept, whatever else was committed is read. Does not know how
a tree is grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix  # of lists as well as of paths

from draftproof.request import Request
from draftproof.runners.base import Target, Work, begin
from draftproof.tree import TokenTree

SLICE = 512  # prompt tokens read in one pass
PADDING = 1024  # vocabularies that differ by less differ by padding of the embedding matrix


class Beside:
    """A model with a cache of its own that follows requests by what it ran for them."""

    def __init__(self, runner: Target, target: Target) -> None:
        if abs(target.vocabulary - runner.vocabulary) >= PADDING:
            raise ValueError(
                f"the draft's vocabulary has {runner.vocabulary} tokens and the target's "
                f"{target.vocabulary}: use a draft with the target's tokenizer, or ForeignDraft"
            )
        self.runner = runner
        self._trees: dict[int, TokenTree | None] = {}  # what lies in its scratch
        self._seen: dict[int, list[int]] = {}  # the text when it was last caught up with

    def release(self, request: Request) -> None:
        self.runner.free(request.key)
        self._trees.pop(request.key, None)
        self._seen.pop(request.key, None)

    def room(self, request: Request) -> int:
        """Tokens that may be drafted: the bonus needs a place, and each of them one here."""
        return min(request.room - 1, self.runner.max_length - len(request.tokens))

    def catch_up(self, request: Request) -> bool:
        """Keep what was committed of its last tree, read the rest up to a last slice.

        Returns whether the model can draft: not behind a token that it has no row for, as the
        target's padding has some.
        """
        runner, key, tokens = self.runner, request.key, request.tokens
        if key not in self._trees:
            begin(runner, key, tokens)
        cached = runner.cached(key)
        seen, self._seen[key] = self._seen.get(key, []), list(tokens)
        if seen[:cached] != tokens[:cached]:  # a draft was drafted for, and then rejected
            cached = len(commonprefix([seen[:cached], tokens[:-1]]))
            runner.crop(key, cached)
            self._trees[key] = None
        tree = self._trees.get(key)
        self._trees[key] = None
        if tree is not None and (same := along(tree, tokens[cached:-1])):
            runner.keep(key, same)
            cached += len(same)
        if max(tokens[cached:]) >= runner.vocabulary:
            return False
        while len(tokens) - 1 - cached > SLICE:
            runner.forward([Work(key, tokens[cached : cached + SLICE], None)])
            cached += SLICE
        return True

    def work(self, request: Request, tree: TokenTree, ran: int) -> Work:
        """A pass over the nodes from `ran` on, behind all committed tokens."""
        new = [] if ran else request.tokens[self.runner.cached(request.key) : -1]
        return Work(request.key, new, tree, ran)

    def ran(self, request: Request, tree: TokenTree) -> None:
        """All nodes of `tree` lie in its scratch."""
        self._trees[request.key] = tree


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
