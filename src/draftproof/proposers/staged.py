"""Staged speculation: a draft that is itself drafted for, to any depth.

The draft writes its tokens as a target would: a smaller proposer guesses ahead of it, one pass of
it checks. What it writes is what it would have written alone: under the coupled rule token for
token, under the rejection rule in law, from a stream of its own and with every correction kept, so
that its laws are those that its tokens were drawn from. Spector and Re 2023 (arXiv 2308.04623).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Proposer
from draftproof.drafting.beside import Beside
from draftproof.drafting.growing import Growing, stop
from draftproof.drafting.growth import Growth
from draftproof.drafting.stage import Stage, written
from draftproof.drafting.together import passed
from draftproof.runners.base import Load, Output, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class Staged(Growing):
    """Drafts with `model` (hub id, folder or loaded), for which `drafter` drafts.

    drafter: any proposer, another `Staged` too. num_draft_tokens, min_confidence, branch: as of
    `DraftModel`.
    """

    name = "staged"
    drafting_cost = 1.0

    def __init__(
        self,
        model: Any,
        drafter: Proposer,
        num_draft_tokens: int = 8,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch, usual=8)
        self.model, self.drafter = model, adopt(drafter)
        if self.drafter.taps or self.drafter.wants_best:
            raise ValueError("the drafter of a draft learns nothing from it: use another method")
        self._stages: dict[int, Stage] = {}

    def bind(self, target: Target, load: Load) -> None:
        self.beside = Beside(load(target, self.model), target)
        self.drafter.bind(self.beside.runner, load)
        self.vocabulary = target.vocabulary
        self._stages.clear()

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.beside.catch_up(requests, ahead=True)
        self.drafter.read_along([self._stage(request).shadow for request in requests])

    def release(self, request: Writing) -> None:
        self.beside.release(request)
        if (stage := self._stages.pop(request.key, None)) is not None:
            self.drafter.release(stage.shadow)

    def close(self) -> None:
        self.beside.close()
        self._stages.clear()
        self.drafter.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        able = self.beside.catch_up(requests)
        growths = [self._start(r, ready) for r, ready in zip(requests, able, strict=True)]
        while growing := [growth for growth in growths if growth.room > 0]:
            self._grow(growing)
        for growth in growths:
            if (ran := self._stages[growth.request.key].ran) is not None:
                self.beside.ran(growth.request, ran)
        return [growth.tree() for growth in growths]

    def _stage(self, request: Writing) -> Stage:
        """With the text as it is committed."""
        if (stage := self._stages.get(request.key)) is None:
            stage = self._stages[request.key] = Stage(request.shadow())
            # Its drafter may not guess where the draft itself has no place to stand.
            stage.shadow.max_length = min(request.max_length, self.beside.runner.max_length)
        stage.follow(request, self.vocabulary)
        return stage

    def _start(self, request: Writing, ready: bool) -> Growth:
        self._stage(request)
        return Growth(request, self.chain, self.beside.room(request) if ready else 0)

    def _guess(self, growing: Sequence[Growth]) -> None:
        """What the drafter proposes for each, cut to what the draft has places and rows for."""

        def proposed(some: Sequence[Growth]) -> Sequence[TokenTree]:
            return self.drafter.propose([self._stages[g.request.key].shadow for g in some])

        stages = [self._stages[growth.request.key] for growth in growing]
        for stage in stages:
            stage.guess = TokenTree.chain(stage.shadow.tokens[-1:])
        alive = [g for g, s in zip(growing, stages, strict=True) if not s.shadow.plain]
        for growth, tree in passed(alive, proposed, stop):
            stage = self._stages[growth.request.key]
            if tree.tokens[0] != stage.guess.tokens[0]:
                stop(growth, ValueError("node 0 of the tree is not the draft's last token"))
                continue
            room = max(0, stage.shadow.room - 1)
            stage.guess = tree.truncate(room).below(self.beside.runner.vocabulary)
            growth.request.warnings += [f"drafting for it: {w}" for w in stage.shadow.warnings]
            stage.shadow.warnings.clear()

    def _run(self, growing: Sequence[Growth]) -> list[tuple[TokenTree, Output]]:
        """What ran with the guesses, and the rows of a pass over it."""
        stages = [self._stages[growth.request.key] for growth in growing]
        wholes = [stage.hung(stage.guess) for stage in stages]
        work = [
            self.beside.work(growth.request, whole, len(whole) - len(stage.guess))
            for growth, stage, whole in zip(growing, stages, wholes, strict=True)
        ]
        return list(zip(wholes, self.beside.runner.forward(work), strict=True))

    def _grow(self, growing: Sequence[Growth]) -> None:
        """One pass, and what the draft accepts of it."""
        self._guess(growing)
        going = [growth for growth in growing if growth.room > 0]
        for growth, (whole, output) in passed(going, self._run, stop):
            stage = self._stages[growth.request.key]
            first, stage.ran = len(whole) - len(stage.guess), whole
            try:
                path, found = written(
                    stage.shadow, stage.guess, output.logits, self.branch, self.vocabulary
                )
            except Exception as error:  # of a row, or of a rule from outside
                stop(growth, error)
                continue
            stage.tip = first + path[-1]
            for children in found:
                growth.level([children])
                stage.shadow.tokens += children[0][:1]
                stage.shadow.history.append(children[0][:1])
                if not growth.room:
                    break
