"""The loop: schedule, propose, run, verify, commit.

Knows runners, proposers and requests by their protocols only; which method drafts, which model
runs, and what text is are other files' business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.picks import Laws, Picks
from draftproof.proposers.base import Proposer, release
from draftproof.request import VERIFIER, Feedback, Request
from draftproof.runners.base import Output, Runner, Work, begin
from draftproof.sampling import NoCandidate, argmax_rows
from draftproof.scheduler import Scheduler, Turn
from draftproof.tree import TokenTree
from draftproof.verify import Typical, verify, verify_rejection, verify_typical

RULES = ("coupled", "rejection", "typical")


class Engine:
    """Writes requests, several at once, one step at a time."""

    def __init__(
        self,
        runner: Runner,
        proposer: Proposer | None = None,
        *,
        rule: str | Typical = "coupled",
        scheduler: Scheduler,
        vocabulary: int | None = None,
    ) -> None:
        if not isinstance(rule, Typical) and rule not in RULES:
            raise ValueError(f"rule {rule!r} is unknown: use one of {', '.join(RULES)}")
        self.rule = Typical() if rule == "typical" else rule
        self.runner, self.scheduler = runner, scheduler
        self.vocabulary = vocabulary
        self.use(proposer)

    def use(self, proposer: Proposer | None) -> None:
        """Draft with `proposer`, which is bound already, from the next step on."""
        self.proposer = proposer
        self.taps = proposer.taps if proposer is not None else ()
        self.wants_best = getattr(proposer, "wants_best", False)

    @property
    def name_of_rule(self) -> str:
        return "typical" if isinstance(self.rule, Typical) else self.rule

    def add(self, request: Request) -> None:
        """Let `request` run as soon as there is a place."""
        if not request.finished:
            self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End `request` now, keeping what it wrote; nothing happens if it has ended."""
        if not request.finished:
            request.finish("abort")
            self._release(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One pass of the target; returns the requests that wrote or ended."""
        turns = self.scheduler.pick(self.runner.cached, self._begin)
        trees = self._propose(turns)
        work = [
            Work(turn.request.key, turn.new, tree, greedy=self._greedy(turn.request))
            for turn, tree in zip(turns, trees, strict=True)
        ]
        outputs = self.runner.forward(work, self.taps) if work else []
        moved = []
        for turn, tree, output in zip(turns, trees, outputs, strict=True):
            if tree is not None:
                self._commit(turn.request, tree, output)
                moved.append(turn.request)
        return moved

    def _greedy(self, request: Request) -> bool:
        return self.rule == "coupled" and request.greedy

    def _begin(self, request: Request) -> None:
        begin(self.runner, request.key, request.tokens)

    def _propose(self, turns: Sequence[Turn]) -> list[TokenTree | None]:
        """A tree for every turn that has read its prompt."""
        drafting = [
            turn.request
            for turn in turns
            if turn.whole and not turn.request.plain and turn.request.room > 1
        ]
        drafts = self._drafts(drafting) if self.proposer is not None and drafting else {}
        trees: list[TokenTree | None] = []
        for turn in turns:
            tree = drafts.get(turn.request.key) or TokenTree.chain([turn.request.tokens[-1]])
            # The bonus token needs a place too: no node may stand on the last position.
            trees.append(tree.truncate(turn.request.room - 1) if turn.whole else None)
        return trees

    def _drafts(self, requests: Sequence[Request]) -> dict[int, TokenTree]:
        """The proposer's trees; a request on which it fails goes on without it, and says so."""
        assert self.proposer is not None
        try:
            trees = self.proposer.propose(requests)
            for request, tree in zip(requests, trees, strict=True):
                self._check(request, tree)
            return {request.key: tree for request, tree in zip(requests, trees, strict=True)}
        except Exception as error:  # a drafter is foreign code, and the output does not need it
            if len(requests) > 1:
                return {
                    key: tree for each in requests for key, tree in self._drafts([each]).items()
                }
            requests[0].stop_drafting(error)
            release(self.proposer, requests[0])
            return {}

    def _check(self, request: Request, tree: TokenTree) -> None:
        """Refuse what would reach the model as another context, or not at all."""
        if tree.tokens[0] != request.tokens[-1]:
            raise ValueError("node 0 of the tree is not the request's last token")
        size = self.vocabulary
        if size is None:
            return
        if min(tree.tokens) < 0 or max(tree.tokens) >= size:
            raise ValueError(f"the tree holds a token outside of the vocabulary of {size}")
        if tree.laws is not None and tree.laws.shape[1] != size:
            raise ValueError(f"the tree's laws are not over the vocabulary of {size}")

    def _commit(self, request: Request, tree: TokenTree, output: Output) -> None:
        """Verify a tree, write what was accepted, commit exactly what was written."""
        try:
            path, bonus = self._verify(request, tree, output)
        except NoCandidate as error:
            request.finish("error", str(error))
            self._release(request)
            return
        written = request.accept(tree, path, bonus, output.logits)
        if request.finished:
            self._release(request)
            return
        self.runner.keep(request.key, path[: len(written)])
        best = _best(output) if self.wants_best else None
        request.feedback = Feedback(tree, path, output.hidden, best)

    def _verify(self, request: Request, tree: TokenTree, output: Output) -> tuple[list[int], int]:
        if self.rule == "rejection":
            laws = Laws(request, tree, output.logits)
            return verify_rejection(tree, laws, request.generator(VERIFIER))
        if isinstance(self.rule, Typical):
            return verify_typical(tree, Laws(request, tree, output.logits), self.rule)
        return verify(tree, Picks(request, tree, output.logits, output.best))

    def _release(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.runner.free(request.key)
        if self.proposer is not None:
            release(self.proposer, request)


def _best(output: Output) -> Sequence[int] | None:
    """The target's argmax after every node; None where a row is not finite."""
    if output.best is not None:
        return output.best
    try:
        return argmax_rows(output.logits)
    except NoCandidate:
        return None
