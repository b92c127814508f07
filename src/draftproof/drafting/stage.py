"""A draft that is drafted for, and one request: its text, and what it writes of a tree.

It writes what it would have written alone, by the target's own rules and with its own rows. Knows
no runner, and not who drafts for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from draftproof.rules import fitted, law, race
from draftproof.tree import TokenTree
from draftproof.verify import verify, verify_rejection
from draftproof.writing import VERIFIER, Children, Writing


@dataclass(slots=True)
class Stage:
    """A request as the draft's drafter sees it, and what the draft ran for it in this step."""

    shadow: Writing
    guess: TokenTree = field(default_factory=lambda: TokenTree.chain([0]))  # of its drafter
    ran: TokenTree | None = None  # all nodes, of which some were rejected
    tip: int = 0  # the node that the last written token hangs from
    start: tuple[int, int] = 0, 0  # of what ran last: where in the text, and its rewinds then

    def follow(self, request: Writing, vocabulary: int) -> None:
        """Take over the text as it is committed, and the rule from outside about the target's ids.

        The draft's drafter has rows over the draft's ids, of which there may be fewer or more.
        """
        self.shadow.follow(request)
        self.ran = None
        if (process := request.history.process) is not None:

            def over(ids: Tensor, row: Tensor) -> Tensor:
                return fitted(process(ids, fitted(row, vocabulary)), len(row))

            self.shadow.history.process = over

    def take(self, tree: TokenTree, vocabulary: int) -> None:
        """Of a guess what the draft, with so many ids, has places and rows for."""
        if tree.tokens[0] != self.shadow.tokens[-1]:
            raise ValueError("node 0 of the tree is not the draft's last token")
        self.guess = tree.truncate(max(0, self.shadow.room - 1)).below(vocabulary)

    def write(self, tokens: Sequence[int]) -> None:
        """Tokens of the draft, which its drafter takes for committed."""
        self.shadow.tokens += tokens
        self.shadow.history.append(tokens)

    def hung(self, tree: TokenTree) -> TokenTree:
        """What ran with `tree`, whose node 0 has not run unless nothing has."""
        if self.ran is None:
            return tree
        parents = [self.tip, *(len(self.ran) + parent for parent in tree.parents[1:])]
        return TokenTree([*self.ran.tokens, *tree.tokens], [*self.ran.parents, *parents])


def written(
    shadow: Writing, tree: TokenTree, logits: Tensor, count: int, vocabulary: int
) -> tuple[list[int], list[Children]]:
    """The path in `tree` that the draft accepts, and by depth what it writes there.

    logits: its rows (N, V) for the tree's nodes. First of the ids at a depth is the token written,
    the others, at most `count` in all, are its siblings. None at all at a depth: no token that the
    draft has a row for may stand there.
    """
    if shadow.rule.wants_laws(shadow.params):
        return _drawn(shadow, tree, logits, vocabulary)
    raced = Raced(shadow, tree, logits, count, vocabulary)
    path, _ = verify(tree, raced)
    return path, [*raced.found.values()]  # of equal siblings only the first is asked


class Raced:
    """The draft's own picks after the nodes of a tree, and with each its siblings."""

    def __init__(
        self, shadow: Writing, tree: TokenTree, rows: Tensor, count: int, vocabulary: int
    ) -> None:
        self.shadow, self.tree, self.rows = shadow, tree, rows
        self.count, self.vocabulary = count, vocabulary
        self.found: dict[int, Children] = {}

    def __getitem__(self, node: int, /) -> int:
        path, row = self.tree.path_tokens(node), self.rows[node]
        self.found[node] = race(self.shadow, path, row, self.count, self.vocabulary)
        return next(iter(self.found[node][0]), -1)  # no node's token


class Drawn:
    """The draft's own laws (W,) after the nodes of a tree, over as many ids as its drafter's."""

    def __init__(self, shadow: Writing, tree: TokenTree, logits: Tensor, vocabulary: int) -> None:
        self.shadow, self.tree, self.logits = shadow, tree, logits
        self.vocabulary, self.width = vocabulary, max(logits.shape[1], vocabulary)
        self.found: dict[int, Tensor] = {}

    def widened(self, laws: Tensor) -> Tensor:
        return torch.nn.functional.pad(laws, (0, self.width - laws.shape[-1]))

    def __getitem__(self, node: int, /) -> Tensor:
        if node not in self.found:
            path = self.tree.path_tokens(node)
            q = law(self.shadow, path, self.logits[node], self.vocabulary)
            self.found[node] = self.widened(q)
        return self.found[node]

    def bars(self, node: int) -> bool:
        """Whether no token that the draft has a row for may follow."""
        return not float(self[node].sum())


def _drawn(
    shadow: Writing, tree: TokenTree, logits: Tensor, vocabulary: int
) -> tuple[list[int], list[Children]]:
    """By the rejection rule, from a stream of its own."""
    p = Drawn(shadow, tree, logits, vocabulary)
    if tree.laws is not None:
        tree = replace(tree, laws=p.widened(tree.laws))
    nothing: Children = ([], [], [])
    if p.bars(0):
        return [0], [nothing]
    path, bonus = verify_rejection(tree, p, shadow.generator(VERIFIER), p.bars)
    tokens = [*(tree.tokens[node] for node in path[1:]), *([] if bonus is None else [bonus])]
    laws = [p[node][:vocabulary] for node in path]
    found: list[Children] = [
        ([t], [float(q[t])], [q]) for t, q in zip(tokens, laws, strict=bonus is not None)
    ]
    return path, found if bonus is not None else [*found, nothing]
