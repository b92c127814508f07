"""Staged speculation: a draft that is itself drafted for, to any depth.

The draft writes its tokens as a target would: a smaller proposer guesses ahead of it, one pass of
it checks. What it writes is what it would have written alone: under the coupled rule token for
token, under the rejection rule in law, from a stream of its own and with every correction kept, so
that its laws are those that its tokens were drawn from. Spector and Re 2023 (arXiv 2308.04623).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.picks import Laws
from draftproof.proposers.base import Proposer, bind, release
from draftproof.proposers.beside import Beside
from draftproof.proposers.growing import Growing, Growth, race, stop
from draftproof.proposers.together import passed
from draftproof.request import VERIFIER, Request
from draftproof.runners.base import Output, Target
from draftproof.sampling import NoCandidate
from draftproof.tree import TokenTree
from draftproof.verify import verify, verify_rejection

Found = list[tuple[list[int], list[float], list[Tensor]]]  # ids, shares, laws by depth


@dataclass(slots=True)
class Stage:
    """A request as the draft's drafter sees it, and what the draft ran for it in this step."""

    shadow: Request
    ran: TokenTree | None = None  # all nodes, of which some were rejected
    tip: int = 0  # the node that the last written token hangs from

    def hung(self, tree: TokenTree) -> TokenTree:
        """What ran with `tree`, whose node 0 has not run unless nothing has."""
        if self.ran is None:
            return tree
        parents = [self.tip, *(len(self.ran) + parent for parent in tree.parents[1:])]
        return TokenTree([*self.ran.tokens, *tree.tokens], [*self.ran.parents, *parents])


class Staged(Growing):
    """Drafts with `model` (hub id, folder or loaded), for which `drafter` drafts.

    drafter: any proposer, another `Staged` too. num_draft_tokens, min_confidence, branch: as of
    `DraftModel`.
    """

    def __init__(
        self,
        model: Any,
        drafter: Proposer,
        num_draft_tokens: int = 8,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch)
        if drafter.taps or getattr(drafter, "wants_best", False):
            raise ValueError("the drafter of a draft learns nothing from it: use another method")
        self.model, self.drafter = model, drafter
        self._stages: dict[int, Stage] = {}

    def bind(self, target: Target) -> None:
        self.beside = Beside(target.load(self.model), target)
        bind(self.drafter, self.beside.runner)
        self.vocabulary = target.vocabulary
        self._stages.clear()

    def release(self, request: Request) -> None:
        self.beside.release(request)
        if (stage := self._stages.pop(request.key, None)) is not None:
            release(self.drafter, stage.shadow)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        grown = [self._start(request) for request in requests]
        self.grow(grown)
        for growth in grown:
            if (ran := self._stages[growth.request.key].ran) is not None:
                self.beside.ran(growth.request, ran)
        return [growth.tree() for growth in grown]

    def _start(self, request: Request) -> Growth:
        if (stage := self._stages.get(request.key)) is None:
            stage = self._stages[request.key] = Stage(request.twin())
            # Its drafter may not guess where the draft itself has no place to stand.
            stage.shadow.max_length = min(request.max_length, self.beside.runner.max_length)
        stage.shadow.follow(request)
        stage.ran = None
        room = self.beside.room(request) if self.beside.catch_up(request) else 0
        return Growth(request, min(self.num_draft_tokens, room), [request.tokens[-1]])

    def _run(self, growing: Sequence[Growth]) -> list[tuple[TokenTree, TokenTree, Output]]:
        """What the drafter proposes, what ran with it, and the rows of a pass over it."""
        stages = [self._stages[growth.request.key] for growth in growing]
        proposed = self.drafter.propose([stage.shadow for stage in stages])
        rooms = [max(0, stage.shadow.room - 1) for stage in stages]
        trees = [tree.truncate(room) for tree, room in zip(proposed, rooms, strict=True)]
        wholes = [stage.hung(tree) for stage, tree in zip(stages, trees, strict=True)]
        work = [
            self.beside.work(growth.request, whole, growth.ran)
            for growth, whole in zip(growing, wholes, strict=True)
        ]
        return list(zip(trees, wholes, self.beside.runner.forward(work), strict=True))

    def _grow(self, growing: Sequence[Growth]) -> None:
        """See `Growing`: one pass, and what the draft accepts of it."""
        for growth, (tree, whole, output) in passed(growing, self._run, stop):
            stage = self._stages[growth.request.key]
            first, growth.ran, stage.ran = growth.ran, len(whole), whole
            try:
                path, found = self._written(stage.shadow, tree, output.logits[:, : self.vocabulary])
            except NoCandidate as error:
                stop(growth, error)
                continue
            stage.tip = first + path[-1]
            for ids, shares, laws in found:
                growth.add(ids, shares, laws)
                stage.shadow.tokens.append(ids[0])
                stage.shadow.history.append(ids[:1])
                if growth.depth == 0 or growth.chance < self.min_confidence:
                    growth.depth = 0
                    break

    def _written(self, shadow: Request, tree: TokenTree, logits: Tensor) -> tuple[list[int], Found]:
        """What the draft accepts of `tree` and its correction, by the target's own rules."""
        if shadow.rule == "rejection" and shadow.params.temperature > 0:
            p = Laws(shadow, tree, logits)
            path, bonus = verify_rejection(tree, p, shadow.generator(VERIFIER))
            assert bonus is not None  # nothing ends here
            tokens = [*(tree.tokens[node] for node in path[1:]), bonus]
            more = self.vocabulary - logits.shape[1]
            laws = [torch.nn.functional.pad(p[node], (0, more)) for node in path]
            return path, [([t], [float(q[t])], [q]) for t, q in zip(tokens, laws, strict=True)]
        raced: dict[int, tuple[list[int], list[float], list[Tensor]]] = {}

        class Picks:
            def __getitem__(self, node: int, /) -> int:
                raced[node] = race(shadow, tree.path_tokens(node), logits[node], branch)
                return raced[node][0][0]

        branch = self.branch
        path, _ = verify(tree, Picks())
        return path, [raced[node] for node in path]
