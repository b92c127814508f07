"""Staged speculation: a draft that is itself drafted for, to any depth.

The draft writes its tokens as a target would: a smaller proposer guesses ahead of it, one pass of
it checks. It writes what it would have written alone: under the coupled rule token for token, under
the rejection rule in law, from a stream of its own and with every correction kept, so that its laws
are those that its tokens were drawn from. Spector and Re 2023 (arXiv 2308.04623).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.drafting.adopting import adopt, bind
from draftproof.drafting.base import GoesOn, Proposer
from draftproof.drafting.beside import Beside
from draftproof.drafting.growing import Growing, going, stop
from draftproof.drafting.growth import Growth
from draftproof.drafting.stage import Stage, written
from draftproof.drafting.standing import Standing, follow, learn, run
from draftproof.drafting.together import passed
from draftproof.runners.base import Load, Output, Target
from draftproof.tree import TokenTree
from draftproof.writing import Cost, Writing


class Staged(Growing):
    """Drafts with `model` (hub id, folder or loaded), for which `drafter` drafts.

    drafter: any proposer, to whom the draft is the target: a look-up, heads of the draft, another
    draft, another `Staged`. num_draft_tokens: the longest draft; 8 unless given, and under `Auto`
    what pays. min_confidence, branch: as of `DraftModel`.
    """

    name = "staged"
    stepwise, drafting_cost, promise = True, 0.15, 0.7

    def __init__(
        self,
        model: Any,
        drafter: Proposer,
        num_draft_tokens: int | None = None,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
    ) -> None:
        super().__init__(num_draft_tokens, min_confidence, branch, usual=8)
        self.model, self.drafter = model, adopt(drafter)
        if self.drafter.observes:
            raise ValueError(f"a draft does not show {self.drafter.name} prompts: use another one")
        self._stages: dict[int, Stage] = {}

    def bind(self, target: Target, load: Load) -> None:
        runner = load(target, self.model)
        self.beside = Beside(runner, target)
        standing: Any = Standing(runner, self._stages)
        bind(self.drafter, standing, lambda _, model, quantize=None: load(runner, model, quantize))
        self.vocabulary = target.vocabulary
        self._stages.clear()

    def read_along(self, requests: Sequence[Writing]) -> None:
        self.beside.catch_up(requests, ahead=True)
        self.drafter.read_along([self._stage(request).shadow for request in requests])

    def release(self, request: Writing) -> None:
        self.beside.release(request)
        if (stage := self._stages.pop(request.key, None)) is not None:
            stage.follow(request, self.vocabulary)  # whoever remembers texts gets what was written
            self.drafter.release(stage.shadow)

    def close(self) -> None:
        self.beside.close()
        self._stages.clear()
        self.drafter.close()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.propose_within(requests, None)

    def propose_within(
        self, requests: Sequence[Writing], goes_on: GoesOn | None
    ) -> list[TokenTree]:
        shape = self.chain if goes_on is None else self.open
        able = self.beside.catch_up(requests)
        for request in requests:
            self._stage(request)
        growths = [
            Growth(request, shape, self.beside.room(request) if ready else 0)
            for request, ready in zip(requests, able, strict=True)
        ]
        while growing := going(growths, goes_on):
            self._grow(growing)
        for request in requests:
            if (ran := self._stages[request.key].ran) is not None:
                self.beside.ran(request, ran)
        return [growth.tree() for growth in growths]

    def _stage(self, request: Writing) -> Stage:
        """With the text as it is committed."""
        if (stage := self._stages.get(request.key)) is None:
            stage = self._stages[request.key] = Stage(request.shadow())
        # Its drafter may not guess where the draft itself has no place to stand.
        stage.shadow.max_length = min(request.max_length, self.beside.runner.max_length)
        follow(stage, request, self.vocabulary)
        return stage

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
            try:
                stage.take(tree, self.beside.runner.vocabulary)
            except ValueError as error:
                stop(growth, error)
            growth.request.warnings += [f"drafting for it: {w}" for w in stage.shadow.warnings]
            stage.shadow.warnings.clear()

    def _run(self, growing: Sequence[Growth]) -> list[tuple[TokenTree, Output, Cost]]:
        """What ran with the guesses, the rows of a pass over it, and what that took."""
        asked = [(growth.request, self._stages[growth.request.key]) for growth in growing]
        return run(self.beside, asked, self.drafter.taps)

    def _grow(self, growing: Sequence[Growth]) -> None:
        """One pass, and what the draft accepts of it."""
        self._guess(growing)
        alive = [growth for growth in growing if growth.room > 0]
        for growth, (whole, output, cost) in passed(alive, self._run, stop):
            stage = self._stages[growth.request.key]
            stage.ran = whole
            try:
                path, found = written(
                    stage.shadow, stage.guess, output.logits, self.branch, self.vocabulary
                )
                learn(stage, output, path, self.drafter.wants_best, cost)
            except Exception as error:  # of a row, or of a rule from outside
                stop(growth, error)
                continue
            for children in found:
                if growth.room:
                    growth.level([children])
                    stage.write(children[0][:1])
