"""A drafting method as a source among others: what its tokens are worth, and what it costs to ask.

Knows no method: what it needs to be told beforehand stands in `Drafter`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from ctypes import c_double

from draftproof.drafting.account import Funds
from draftproof.drafting.asking_cost import AskingCost, Halfway, reading
from draftproof.drafting.base import Drafter, GoesOn
from draftproof.drafting.calibration import Calibration, conditional
from draftproof.tree import TokenTree
from draftproof.writing import Writing

DEEP = 16  # depths that are told apart
SIBLINGS = 3  # children of a node that are learnt from
RECENT, REACH = 1 / 12, 1 / 24  # weights of the latest
# Passes over one row below which a source is asked without being asked about; the lower one of a
# method that says that it takes passes of its own.
FREE, FREE_OF_PASSES = 0.2, 0.03
LARGEST = 256  # drafted tokens of a tree that are looked at
SOON = 4  # steps until a dear source is tried again, behind a success

Clock = Callable[[], float]


class Source:
    """One of several drafting methods. name: what users are told."""

    def __init__(self, drafter: Drafter, name: str, clock: Clock = time.perf_counter) -> None:
        self.drafter, self.name, self.clock = drafter, name, clock
        # In passes over one row: of levels for all texts, or of whole drafts for so many texts.
        self.asking = AskingCost(drafter.drafting_cost, drafter.stepwise)
        self.cost, self.further = self.asking.first, self.asking.further
        self.pause = SOON  # steps until it is tried again, in the text that ended last
        self.funds = Funds()
        # [d]: that one of the nodes at depth d + 1 is right if one at depth d is.
        self.reach = (c_double * DEEP)(*[drafter.promise] * DEEP)
        self._calibrations: dict[int, Calibration] = {}

    @property
    def free(self) -> bool:
        """Whether asking costs next to nothing."""
        return self.cost < (FREE_OF_PASSES if self.drafter.drafting_cost else FREE)

    def propose(
        self,
        requests: Sequence[Writing],
        goes_on: GoesOn | None,
        one: float,
        missed: Sequence[tuple[int, int]],
    ) -> tuple[list[TokenTree], float]:
        """Its trees, and what such drafts take, in passes over one row of `one` seconds.

        missed: of each text the tokens of its prompt that the source has to read first, which is
        paid from its funds alone, and those that were written behind it.
        """
        began, halfway = self.clock(), None
        if goes_on is not None and self.drafter.stepwise:
            halfway = Halfway(goes_on, self.clock)
            trees = self.drafter.propose_within(requests, halfway)
        else:
            trees = self.drafter.propose(requests)
        ended, calls = self.clock(), len(requests)
        if self.drafter.stepwise:
            calls = max((max(tree.depths) for tree in trees), default=0) or 1
        if halfway is None:
            return trees, self.took(ended - began, calls, one, missed)
        halfway.end(ended, calls)
        written, prompts = reading(missed)
        first = max(0.0, halfway.at - began) / one, halfway.levels
        further = max(0.0, ended - halfway.at) / one, calls - halfway.levels
        self.asking.learn_apart(first, further, written + prompts)
        return trees, self._taken(calls + written, prompts)

    def took(
        self, seconds: float, drafts: int, one: float, missed: Sequence[tuple[int, int]]
    ) -> float:
        """What such drafts take, of which so many took these seconds; the rest as of `propose`."""
        written, prompts = reading(missed)
        self.asking.learn(max(0.0, seconds) / one, drafts + written + prompts)
        return self._taken(drafts + written, prompts)

    def _taken(self, calls: float, prompts: float) -> float:
        self.cost, self.further = self.asking.first, self.asking.further
        took = self.asking.of(calls)
        if not self.free:
            self.funds.spend(took + self.further * prompts)
        return took

    def chances(
        self, request: Writing, tree: TokenTree, recent: float, least: float
    ) -> list[float]:
        """Of each node, given its parent; 0 behind one that is reached with less than `least`."""
        return self.calibration(request).chances(tree, recent, least, LARGEST + 1)

    def chance(self, request: Writing, score: float, depth: int, recent: float) -> float:
        """Of one token of that score, given those before it."""
        return self.calibration(request).chance(score, depth, recent)

    def learn(
        self, request: Writing, tree: TokenTree, written: Sequence[int], recent: float
    ) -> tuple[int, float]:
        """These tokens were written behind the tree's node 0.

        Returns how many of them it has in a row, and how much more often than foretold it has been
        right of late.
        """
        calibration = self.calibration(request)
        tokens, parents, node, right_ones = tree.tokens, tree.parents, 0, 0
        for depth, token in enumerate(written[:DEEP], 1):
            # Of most trees a node or two are looked at: no list of all children is made for that.
            children = min(parents.count(node), SIBLINGS)
            if not children:
                break
            child, following, missed = node, -1, 1.0
            for _ in range(children):
                child = parents.index(node, child + 1)
                right = tokens[child] == token
                score = conditional(parents, tree.scores, child)
                missed -= calibration.learn(score, depth, recent, right)
                following = child if right and following < 0 else following
            reached = 1.0 if following >= 0 else 0.0
            self.reach[depth - 1] += (reached - self.reach[depth - 1]) * REACH
            recent += (reached - 1 + max(missed, 0.0) - recent) * RECENT
            if following < 0:
                break
            node, right_ones = following, depth
        return right_ones, recent

    def expected(self, depth: int, recent: float) -> float:
        """Chance that a token `depth` deep, not drafted yet, will be right if those before are."""
        reach = self.reach[min(depth, DEEP) - 1]
        odds = math.log(max(reach, 1e-3) / max(1 - reach, 1e-3))
        return 1 / (1 + math.exp(-odds - 2 * recent))

    def calibration(self, request: Writing) -> Calibration:
        """One for each sort of text: greedy, and by temperature."""
        sort = min(math.ceil(2 * request.params.temperature), 4)
        found = self._calibrations.get(sort)
        if found is None:
            found = self._calibrations[sort] = Calibration(self.drafter.trust)
        return found
