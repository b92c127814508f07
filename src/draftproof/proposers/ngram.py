"""N-gram lookup: what followed the same last tokens earlier in prompt and output.

The longest match wins; several different continuations are merged into one tree. Costs no model.
After "Prompt Lookup Decoding" (Saxena 2023) and LLMA (Yang et al. 2023, arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.compiled import CompiledNGrams, ngrams
from draftproof.drafting.looks import LookUp
from draftproof.drafting.own import Own
from draftproof.drafting.structures import Look
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class NGram(LookUp):
    """Drafts from the request's own text, and from what an encoder read for it.

    num_draft_tokens: tokens of the longest branch. max_ngram, min_ngram: tokens that must match.
    branches: different continuations per tree.
    """

    name, yields = "ngram", "suffix"
    # Of HumanEval and MT-bench written by SmolLM2-135M and by the bundled target.
    promise, trust = 0.78, (1.1, -0.9, 0.4)

    def __init__(
        self,
        num_draft_tokens: int = 8,
        *,
        max_ngram: int = 4,
        min_ngram: int = 2,
        branches: int = 2,
    ) -> None:
        if num_draft_tokens < 1 or branches < 1:
            raise ValueError("num_draft_tokens and branches must be 1 or more")
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        self.num_draft_tokens, self.branches = num_draft_tokens, branches
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self._own = Own(lambda: ngrams(min_ngram))

    def bind(self, target: Target, load: Load) -> None:
        self._own.clear()

    def release(self, request: Writing) -> None:
        self._own.release(request)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def look(self, request: Writing) -> Look | None:
        own, _, _ = self._own.of(request)
        if not isinstance(own, CompiledNGrams):
            return None
        return own.look(self.num_draft_tokens, self.max_ngram, self.branches)

    def _propose(self, request: Writing) -> TokenTree:
        own, kept, more = self._own.of(request)
        longest = max(0, min(self.num_draft_tokens, self.useful, request.room - 1))
        tokens, parents, scores = own.draft(kept, more, longest, self.max_ngram, self.branches)
        return TokenTree(tokens, parents, scores=scores)
