"""What a proposer gives a step: a tree for every request, whatever the proposer does.

A drafter is foreign code, and the output does not need it: where it fails, a request goes on
without it and says so. Knows a proposer by its protocol only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from draftproof.counts import AGAIN, FAILED, LAST, OFF
from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Proposer, alone
from draftproof.drafting.lawful import lawful
from draftproof.request import Request
from draftproof.rules import argmax_of
from draftproof.runners.base import Output
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import attended
from draftproof.sampling import PREDICTION, SamplingParams
from draftproof.scheduler import Turn
from draftproof.tree import TokenTree
from draftproof.writing import NODES, Cost, Feedback, reason


@dataclass
class Drafted:
    """What drafting took and gave, over any number of steps, and what the target's passes took."""

    seconds: float = 0.0
    depth: int = 0  # of all trees together: the passes of a draft model
    nodes: int = 0  # roots included
    trees: int = 0
    passes: dict[int, list[float]] = field(default_factory=dict)  # seconds of each, by rows

    def count(self, seconds: float, trees: Sequence[TokenTree]) -> None:
        self.seconds += seconds
        self.depth += sum(max(tree.depths) for tree in trees)
        self.nodes += sum(len(tree.tokens) for tree in trees)
        self.trees += len(trees)

    def reset(self) -> None:
        self.seconds, self.depth, self.nodes, self.trees = 0.0, 0, 0, 0
        self.passes.clear()


class Drafts:
    """The trees of a step, and what becomes of a proposer's failures.

    proposer: None drafts nothing. vocabulary: ids that a tree may hold; None: any. costs: of the
    target's passes. `drafted`, where it is set, counts what is proposed and what passes take.
    """

    drafted: Drafted | None = None
    cost: Cost = (0.0, 0)  # of the last pass
    foretold = 0.0  # seconds that it was expected to take, by what was known before it

    def __init__(self, proposer: Proposer | None, vocabulary: int | None, costs: PassCosts) -> None:
        self.proposer, self.vocabulary, self.costs = proposer, vocabulary, costs
        self._drafter = adopt(proposer) if proposer is not None else None
        self._drafting = False  # anything in this step
        self.wants_best = self._drafter is not None and self._drafter.wants_best
        self.observes = self._drafter is not None and self._drafter.observes
        self.shares = not self.observes  # what is taken over from another key was never shown

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose hidden states the next pass is asked for."""
        drafter = self._drafter
        if drafter is None or not (self._drafting or drafter.observes):
            return ()
        return drafter.next_taps

    def trees(self, turns: Sequence[Turn], running: int) -> list[TokenTree | None]:
        """A tree for every turn that has read its prompt; `running` requests have a place."""
        rows = [len(turn.new) + turn.whole for turn in turns]
        self.costs.plan(sum(rows), _attended(turns, rows), running)
        drafted = self._drafted(turns) if self._drafter is not None else {}
        return [
            _bounded(turn.request, drafted.get(turn.request.key) or _root(turn))
            if turn.whole
            else None
            for turn in turns
        ]

    def _drafted(self, turns: Sequence[Turn]) -> dict[int, TokenTree]:
        """What is drafted for these turns, by key; whoever still reads is read along for."""
        assert self._drafter is not None
        drafting: list[Request] = []
        reading: list[Request] = []
        for turn in turns:
            request = turn.request
            if not (why := self._unasked(request)):
                (drafting if turn.whole else reading).append(request)
            elif turn.whole:
                request.decisions.plainly(why)
                request.planned = (), why
            request.again = False
        self._for_each(reading, self._read_along)
        self._drafting = bool(drafting)
        drafted: dict[int, TokenTree] = {}
        if drafting and not self._drafter.idle(drafting):
            self._for_each(drafting, lambda requests: drafted.update(self._propose(requests)))
        for request in (*drafting, *reading):
            if self._altered(request):
                drafted.pop(request.key, None)
        return drafted

    @property
    def names(self) -> list[str]:
        """What a request may let draft, by name."""
        sources = getattr(self._drafter, "sources", None) or [self._drafter]
        return [source.name for source in sources if source is not None]

    def check(self, params: SamplingParams) -> None:
        """Raises `ValueError` for parameters that let a method draft which is not there."""
        if isinstance(params.speculate, str) and params.speculate not in self.names:
            there = " or ".join(self.names)
            told = f"{there}: name that, or drop it" if there else "nothing: drop it"
            raise ValueError(f"speculate is {params.speculate!r}, but here drafts {told}")
        if params.prediction is not None and PREDICTION not in self.names:
            there = " and ".join(self.names) or "nothing"
            raise ValueError(
                f"prediction is drafted from by 'auto' alone, but here drafts {there}: drop it"
            )

    def undrafted(self, request: Request, tree: TokenTree) -> TokenTree:
        """What runs where a pass over the tree failed: who decides must not take it for drafted."""
        request.decisions.plainly(AGAIN)
        request.planned = (), AGAIN
        return tree.truncate(0)

    def passed(self, turns: Sequence[Turn], rows: Sequence[int], seconds: float) -> None:
        """A pass over so many rows for each turn took so long."""
        count, reading = sum(rows), _attended(turns, rows)
        self.cost = seconds, count
        self.foretold = self.costs.seconds(count, reading) if self.costs.passes else seconds
        self.costs.observe(count, reading, seconds)
        if self.drafted is not None:
            self.drafted.passes.setdefault(count, []).append(seconds)

    def observe(
        self, request: Request, end: int, hidden: Mapping[int, Tensor], path: Sequence[int] = ()
    ) -> None:
        """Hand over the states of committed tokens, the last of which is token `end` - 1.

        path: their rows in `hidden`; all unless given.
        """
        if not self.observes or request.plain or not hidden:
            return
        assert self._drafter is not None
        rows = {layer: h[list(path)] if path else h for layer, h in hidden.items()}
        try:
            count = len(next(iter(rows.values())))
            if count:
                self._drafter.observe(request, end - count, rows)
        except Exception as error:
            request.stop_drafting(error)
            self.release(request)

    def feedback(self, tree: TokenTree, path: list[int], output: Output) -> Feedback:
        """What the drafter may learn from a verification and the pass before it."""
        best = argmax_of(output) if self.wants_best else None
        return Feedback(tree, path, output.hidden, best, *self.cost)

    def release(self, request: Request) -> None:
        """Let go of a request that has ended, or goes on without drafts."""
        if self._drafter is None:
            return
        try:
            self._drafter.release(request)
        except Exception as error:
            request.warnings.append(f"its drafter failed: {reason(error)}")

    def _unasked(self, request: Request) -> str:
        """Why nothing is drafted for it in this step; "": it may be."""
        wanted = request.speculate
        if wanted is False or (wanted is not True and wanted not in self.names):
            return OFF
        if request.plain:
            return FAILED
        if request.again:
            return AGAIN
        return LAST if request.room < 2 else ""

    def _for_each(
        self, requests: Sequence[Request], call: Callable[[Sequence[Request]], None]
    ) -> None:
        """One call for all; where it fails, one for each, and the one that fails drafts no more."""
        try:
            if requests:
                call(requests)
        except Exception as error:
            if len(requests) > 1:
                for request in requests:
                    self._for_each([request], call)
                return
            requests[0].stop_drafting(error)
            self.release(requests[0])

    def _altered(self, request: Request) -> bool:
        """Whether a drafter wrote into the text itself; that is taken back, and it drafts no more.

        Seen by its length and its last token: to compare it all would take longer with every step.
        """
        output = request.history.output
        last = output[-1] if output else request.prompt[-1]
        whole = len(request.prompt) + len(output)
        if len(request.tokens) == whole and request.tokens[-1] == last:
            return False
        request.tokens[:] = [*request.prompt, *output]
        request.stop_drafting(ValueError("it changed request.tokens, the text itself: copy them"))
        self.release(request)
        return True

    def _read_along(self, requests: Sequence[Request]) -> None:
        assert self._drafter is not None
        self._drafter.read_along(requests)

    def _propose(self, requests: Sequence[Request]) -> dict[int, TokenTree]:
        """Checked tree by tree: a second proposal would draw a second time for the others."""
        assert self._drafter is not None
        began = time.perf_counter()
        trees = self._drafter.propose(requests)
        if self.drafted is not None:
            self.drafted.count(time.perf_counter() - began, trees)
        proposed = list(zip(requests, trees, strict=True))
        drafted: dict[int, TokenTree] = {}
        for request, tree in proposed:
            try:
                tree.check(request.tokens[-1], self.vocabulary)
                drafted[request.key] = tree  # what a drafter that failed had drawn before counts
            except Exception as error:
                request.stop_drafting(error)
            if request.plain:
                self.release(request)
        return drafted


def _bounded(request: Request, tree: TokenTree) -> TokenTree:
    """What of a tree may run: the bonus token needs a place too, and a request may want less."""
    if request.history.guide is not None:
        tree = lawful(request, tree)
    # One that may get more room asks for it near its end, and has to come there.
    stays = 2 if request.extends and request.room > NODES else 1
    tree, most = tree.truncate(request.room - stays), request.params.max_draft_nodes
    return tree if most is None else tree.bounded(most, alone(request))


def _attended(turns: Sequence[Turn], rows: Sequence[int]) -> float:
    """What the rows of a pass attend to, in all."""
    return float(sum([attended(n, turn.at) for n, turn in zip(rows, turns, strict=True)]))


def _root(turn: Turn) -> TokenTree:
    """The tree without drafts."""
    return TokenTree.root(turn.request.tokens[-1])
