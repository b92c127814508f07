"""A draft model: a smaller model writes ahead, the target checks.

The draft has its own runner and cache and catches up with a request by the longest common prefix.
It races the request's noise on its own law, so that it proposes what the target is likely to pick;
under the rejection rule it draws from a stream of its own and tells the laws it drew from.
Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); the shared race:
Daliri et al. 2024; stopping after a doubtful token: transformers' assisted generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix  # of lists as well as of paths
from typing import Any

import torch
from torch import Tensor

from foretoken import sampling
from foretoken.proposers.base import Growth
from foretoken.request import Request
from foretoken.runners.base import Target, Work, begin
from foretoken.tree import TokenTree

SLICE = 512  # prompt tokens read in one pass
PADDING = 1024  # vocabularies that differ by less differ by padding of the embedding matrix


class DraftModel:
    """Drafts with a model: hub id, folder or a loaded transformers model.

    num_draft_tokens: the longest draft. min_confidence: a draft ends after the token that brings
    the draft's own estimate of being accepted so far below it; that token is kept. branch: the
    best `branch` tokens at every depth become siblings, the first of them grows (a second sibling
    wins back what the coupled rule loses on a chain, and a pass over a few rows more costs little).
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self,
        model: Any,
        num_draft_tokens: int = 5,
        *,
        min_confidence: float = 0.1,
        branch: int = 2,
    ) -> None:
        if num_draft_tokens < 1 or branch < 1:
            raise ValueError("num_draft_tokens and branch must be 1 or more")
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence={min_confidence} is not within [0, 1]")
        self.model, self.num_draft_tokens = model, num_draft_tokens
        self.min_confidence, self.branch = min_confidence, branch
        self._chains: dict[int, list[int]] = {}  # what the draft ran last, root first

    def bind(self, target: Target) -> None:
        self.runner = target.load(self.model)
        self.vocabulary = target.vocabulary
        if abs(self.vocabulary - self.runner.vocabulary) >= PADDING:
            raise ValueError(
                f"the draft's vocabulary has {self.runner.vocabulary} tokens and the target's "
                f"{self.vocabulary}: use a draft with the target's tokenizer"
            )
        self._chains.clear()

    def release(self, request: Request) -> None:
        self.runner.free(request.key)
        self._chains.pop(request.key, None)

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        grown = [self._start(request) for request in requests]
        while growing := [growth for growth in grown if growth.depth > 0]:
            self._grow(growing)
        for growth in grown:
            self._chains[growth.request.key] = growth.tips[: growth.ran]
        return [growth.tree() for growth in grown]

    def _start(self, request: Request) -> Growth:
        """Catch up with what was committed; a growth of depth 0 where nothing can be drafted."""
        runner, key, tokens = self.runner, request.key, request.tokens
        depth = min(self.num_draft_tokens, request.room - 1, runner.max_length - len(tokens))
        growth = Growth(request, depth, [tokens[-1]])
        if key not in self._chains:
            begin(runner, key, tokens)
        cached = runner.cached(key)
        same = len(commonprefix([self._chains.pop(key, []), tokens[cached:-1]]))
        if same:
            runner.keep(key, range(same))
            cached += same
        if depth > 0 and max(tokens[cached:]) >= runner.vocabulary:
            growth.depth = 0  # a token of the target's padding: the draft has no row for it
        while growth.depth > 0 and len(tokens) - 1 - cached > SLICE:
            runner.forward([Work(key, tokens[cached : cached + SLICE], None)])
            cached += SLICE
        return growth

    def _grow(self, growing: Sequence[Growth]) -> None:
        """One pass of the draft, and children for every tip.

        Where it fails, what was drawn stays in the tree: dropping it because of what it was would
        bias the law.
        """
        try:
            outputs = self.runner.forward([self._work(growth) for growth in growing])
        except Exception as error:  # one request's fault is not the others'
            if len(growing) == 1:
                return self._stop(growing[0], error)
            for growth in growing:
                self._grow([growth])
            return
        for growth, output in zip(growing, outputs, strict=True):
            growth.ran = len(growth.tips)
            try:
                growth.add(*self._children(growth, output.logits[-1][: self.vocabulary]))
            except sampling.NoCandidate as error:
                self._stop(growth, error)
            if growth.chance < self.min_confidence:
                growth.depth = 0

    def _stop(self, growth: Growth, error: Exception) -> None:
        growth.depth = 0
        growth.request.stop_drafting(error)

    def _work(self, growth: Growth) -> Work:
        key, tokens = growth.request.key, growth.request.tokens
        new = tokens[self.runner.cached(key) : -1] if growth.ran == 0 else []
        return Work(key, new, TokenTree.chain(growth.tips), growth.ran)

    def _children(
        self, growth: Growth, logits: Tensor
    ) -> tuple[list[int], list[float], list[Tensor]]:
        """Ids, probabilities and laws of the tip's children, from the draft's row (V,)."""
        request, params, path = growth.request, growth.request.params, growth.tips[1:]
        if request.rule == "rejection" and params.temperature > 0:
            law = sampling.law(logits, params, request.history, path).cpu()
            law = torch.nn.functional.pad(law, (0, self.vocabulary - len(law)))
            ids, laws = sampling.draw_distinct(law, self.branch, request.generator(0))
            return ids, [float(law[token]) for token in ids], laws
        position = len(request.tokens) + len(path)
        ids, shares = sampling.race(
            logits, params, request.history, path, request.noise, position, self.branch
        )
        return ids, shares, []
