"""Forced tokens: what a text's grammar lets follow in any case, as the keys of a schema.

Cut into tokens as the tokenizer would; where the model would write them otherwise they are rejected
like any draft. (llguidance's fast-forward tokens. "Jump-forward decoding" writes them without
asking the model.) Costs no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.drafting.base import Drafter, alone
from draftproof.tree import TokenTree
from draftproof.writing import Writing


class Forced(Drafter):
    """Drafts a chain for texts that follow a grammar. num_draft_tokens: at most so many."""

    name = "forced"
    needs, glanced = "grammar", True
    promise, trust = 0.95, (0.0, 3.0, 0.0)

    def __init__(self, num_draft_tokens: int = 24) -> None:
        if num_draft_tokens < 1:
            raise ValueError("num_draft_tokens must be 1 or more")
        self.num_draft_tokens = num_draft_tokens

    def serves(self, request: Writing) -> bool:
        return super().serves(request) and not alone(request)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: Writing) -> TokenTree:
        guide, root = request.history.guide, request.tokens[-1:]
        longest = max(0, min(self.num_draft_tokens, self.useful, request.room - 1))
        if guide is None or not longest:
            return TokenTree.chain(root)
        return TokenTree.chain(root + guide.forced(request.history.output)[:longest])
