"""N-gram lookup: what followed the same last tokens earlier in prompt and output.

The longest match wins; several different continuations are merged into one tree. Costs no model.
After "Prompt Lookup Decoding" (Saxena 2023) and LLMA (Yang et al. 2023, arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from draftproof.drafting.base import Drafter
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree, merge
from draftproof.writing import Writing

REMEMBERED = 16  # latest places kept for each n-gram
LONGEST = 32  # matches longer than this are not told apart
# Tokens that must match before a draft is as likely right as wrong: ranks its nodes among those of
# other methods.
DOUBT = 1.0


@dataclass(slots=True)
class Index:
    """Where each n-gram of one request ended, the latest places last."""

    length: int = 0  # tokens of the text that are indexed
    rewinds: int = 0  # of the text when they were
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)


class NGram(Drafter):
    """Drafts from the request's own text.

    num_draft_tokens: tokens of the longest branch. max_ngram, min_ngram: tokens that must match.
    branches: different continuations per tree.
    """

    name = "ngram"
    glanced = True
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
        self._indices: WeakKeyDictionary[Writing, Index] = WeakKeyDictionary()

    def bind(self, target: Target, load: Load) -> None:
        self._indices.clear()

    def release(self, request: Writing) -> None:
        self._indices.pop(request, None)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: Writing) -> TokenTree:
        tokens = request.tokens
        if (index := self._indices.get(request)) is None:
            index = self._indices[request] = Index()
        self._extend(index, request)
        root = tokens[-1]
        places = index.places.get(tuple(tokens[-self.min_ngram :]), ())
        # The text may have been another when it was indexed: a draft's, which was rejected.
        matches = [
            (size, at)
            for at in places
            if at < len(tokens) and (size := _match(tokens, at)) >= self.min_ngram
        ]
        if not matches:
            return TokenTree.chain([root])
        matches.sort(reverse=True)
        longest = min(self.num_draft_tokens, self.useful, request.room - 1)
        enough = min(matches[0][0], self.max_ngram)
        found: list[list[int]] = []
        for size, place in matches:
            follow = tokens[place : place + longest]
            if size >= enough and follow not in found and len(found) < self.branches:
                found.append(follow)
        share = matches[0][0] / (matches[0][0] + DOUBT)
        chains = [
            TokenTree.chain([root, *follow], scores=[share**i for i in range(len(follow) + 1)])
            for follow in found
        ]
        return merge(chains) if len(chains) > 1 else chains[0]

    def _extend(self, index: Index, request: Writing) -> None:
        """Index the n-grams that end before the last token: the last one has no continuation."""
        tokens, size, at = request.tokens, self.min_ngram, index.places
        known = min(index.length, request.shortest(index.rewinds))
        for end in range(max(known + 1, size), len(tokens)):
            ngram = tuple(tokens[end - size : end])
            if (places := at.get(ngram)) is None:
                at[ngram] = [end]
            else:
                places.append(end)
                del places[:-REMEMBERED]
        index.length, index.rewinds = len(tokens) - 1, request.rewinds


def _match(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` equal the last ones."""
    size = 0
    while size < min(place, LONGEST) and tokens[place - 1 - size] == tokens[-1 - size]:
        size += 1
    return size
