"""What was planned for a text in a step: what was offered, what of it ran, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting.looks import Looks
from draftproof.drafting.offers import Offer
from draftproof.tree import TokenTree


@dataclass(slots=True)
class Step:
    """Costs are in passes over one row."""

    offered: list[tuple[int, TokenTree]] = field(default_factory=list)
    looks: Looks | None = None  # what native code offered, which is not among them,
    right: Sequence[int] = ()  # and of each look the tokens that were right; -1: it offered none
    offer: Offer | None = None
    kept: list[int] = field(default_factory=lambda: [0])
    tree: TokenTree | None = None  # of the nodes `kept`; None: there is but one
    drafted_by: Sequence[int] = ()  # the source of each node of it but node 0, by number
    only: int = -1  # the source whose own tree ran, where that was settled beforehand
    extra: float = 0.0  # passes over one row more than a plain step takes
    unit: float = 1.0  # a plain step
    weight: float = 1.0  # of a token of the text among those of the others
    texts: int = 1  # in it
    worth: float = 1.0  # of a token more than one, in passes over one row
    why: str = "nothing offered"  # where nothing ran

    def asked(self, number: int) -> bool:
        """Whether this source offered something, be it nothing but node 0."""
        if self.looks is not None and number in self.looks.numbers:
            return True
        return any([asked == number for asked, _ in self.offered])

    def owners(self, written: Sequence[int]) -> list[int]:
        """The source of each token that was drafted and accepted; siblings may repeat one."""
        owners, nodes = list[int](), [0]
        if (tree := self.tree) is None:
            return owners
        for token in written:
            below = [child for node in nodes for child in tree.children(node)]
            nodes = [child for child in below if tree.tokens[child] == token]
            if not nodes:
                break
            owners.append(self.drafted_by[nodes[0] - 1])
        return owners
