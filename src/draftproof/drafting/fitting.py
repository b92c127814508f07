"""The shape of a draft's trees, fitted to what was accepted and to what passes cost.

Sequoia's programme (`shapes`) over the rates of this text and the seconds of this machine. What is
fitted are shapes only, before anything is drawn: no law notices it. But a text that depends on its
trees, as under rejection, must not depend on a clock: for that there are fixed costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftproof.drafting.growth import Ranks
from draftproof.runners.base import Target
from draftproof.runners.costs import pass_seconds
from draftproof.shapes import best_shape, choices_to_parents, parents_to_choices, positional
from draftproof.tree import TokenTree
from draftproof.writing import Writing

CONTEXT = 64  # tokens behind which they run
TIMED = (1, 2, 4, 8, 12, 16)  # nodes
EVERY = 32  # steps between two fittings
TRIALS = 2  # of them with a wide tree, or a rank that paid nothing once would never be tried again
RANKS = 3  # siblings at most
# Deep and wide enough to learn every rank from.
FIRST = [(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)]


def widths(parents: Sequence[int]) -> Counter[Ranks]:
    """Children of every node, by its ranks."""
    return Counter(path[:-1] for path in parents_to_choices(parents))


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass of the target over so many nodes, and of one depth of the draft."""

    passes: Mapping[int, float]
    draft: float

    @classmethod
    def measured(cls, target: Target, draft: Target, nodes: int) -> Costs:
        sizes = [n for n in TIMED if n <= max(nodes, 2)]
        passes = pass_seconds(target, CONTEXT, sizes, rounds=3, warm=1)
        return cls(passes, pass_seconds(draft, CONTEXT, [2], rounds=3, warm=1)[2])


# In passes over one node: about what skinny passes and a draft of a tenth of the target cost.
FIXED = Costs({1: 1.0, 2: 1.02, 4: 1.06, 8: 1.15, 12: 1.25, 16: 1.4}, 0.15)


class Fit:
    """Rates so far, and the shape that they and the costs call for."""

    def __init__(self, costs: Costs, nodes: int, depth: int) -> None:
        self.costs, self.nodes, self.depth = costs, nodes, depth
        self.accepted, self.offered = [0] * RANKS, [0] * RANKS
        self.steps, self.wide = 0, widths(choices_to_parents(FIRST))
        self.fitted = self.wide

    @property
    def widths(self) -> Counter[Ranks]:
        """Children by ranks, of the trees of this step."""
        return self.wide if self.steps % EVERY >= EVERY - TRIALS else self.fitted

    def learn(self, request: Writing, tree: TokenTree) -> None:
        """From what became of `tree`, the request's last; now and then a new shape comes of it."""
        if (feedback := request.feedback) is None:
            return
        where, path = feedback.where(tree), {*feedback.path}  # others' nodes may be there too
        for node, at in enumerate(where):
            children = tree.children(node)[:RANKS] if at in path else ()
            for rank, child in enumerate(children):
                self.offered[rank] += where[child] >= 0
                self.accepted[rank] += where[child] in path
        self.steps += 1
        if self.steps % EVERY:
            return
        rates = positional(self.accepted, self.offered)
        best = best_shape(rates, self.costs.passes, self.costs.draft, self.nodes, self.depth)
        # Where nothing pays a token is drafted all the same: it is how that is noticed to change.
        self.fitted = widths(best.parents if len(best.parents) > 1 else [-1, 0])
        # What is long ago counts less.
        self.accepted = [count // 2 for count in self.accepted]
        self.offered = [count // 2 for count in self.offered]
