"""Predicted outputs: a text that the output is thought to be like, as a file that is being edited.

What follows there is drafted for as long as the output goes on alike. Behind an edit the place is
found again (`drafting.place`). Costs no model. (OpenAI's "predicted outputs"; after LLMA, Yang et
al. 2023, arXiv 2304.04487, whose references are such texts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from draftproof.drafting.base import Drafter, alone
from draftproof.drafting.place import Place
from draftproof.sampling import PREDICTION
from draftproof.tree import TokenTree
from draftproof.writing import Writing

DOUBT = 0.6  # of a place, less with every token before it that agrees
GUESS = 0.1  # that a place is right which nothing speaks for
NEXT = 0.98  # that a token is right if the one before it is


class Predicted(Drafter):
    """Drafts from the prediction that a request brings. num_draft_tokens: of a branch, at most."""

    name = PREDICTION
    needs, glanced = PREDICTION, True
    promise, trust = 0.9, (1.0, 0.0, 0.0)

    def __init__(self, num_draft_tokens: int = 24) -> None:
        if num_draft_tokens < 1:
            raise ValueError("num_draft_tokens must be 1 or more")
        self.num_draft_tokens = num_draft_tokens
        self._places: WeakKeyDictionary[Writing, tuple[Place, int, int]] = WeakKeyDictionary()

    def release(self, request: Writing) -> None:
        self._places.pop(request, None)

    def close(self) -> None:
        self._places.clear()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: Writing) -> TokenTree:
        tokens, parents, scores = request.tokens[-1:], [-1], [1.0]
        longest = max(0, min(self.num_draft_tokens, self.useful, request.room - 1))
        if not request.predicted or not longest:
            return TokenTree(tokens, parents, scores=scores)
        place = self._place(request)
        lost = place.since and not place.run
        branches = {place.at: GUESS if lost else 1 - DOUBT ** (place.run + 1)}
        if place.since and place.run < 2 and self.useful > 1:  # changed, or inserted before it
            branches |= {at: GUESS for at in (place.changed, place.edit) if at != place.at}
        begun = set[int]()
        for at, score in branches.items():
            branch = place.other[at : at + longest]
            if branch and branch[0] not in begun:
                begun.add(branch[0])
                parents += [0, *range(len(tokens), len(tokens) + len(branch) - 1)]
                scores += [score * NEXT**depth for depth in range(len(branch))]
                tokens += branch
        if not begun and alone(request):
            request.plain = True  # a source that offers nothing would keep the others from it
        return TokenTree(tokens, parents, scores=scores)

    def _place(self, request: Writing) -> Place:
        """Where the text is in its prediction. A draft's text may have been taken back."""
        place, written, rewinds = self._places.get(request) or (Place(request.predicted), 0, -1)
        if rewinds not in (-1, request.rewinds):
            place, written = Place(request.predicted), 0
        begin, count = len(request.prompt), len(request.tokens)
        if count - begin > written:
            place.move(request.tokens, begin + written)
        self._places[request] = place, count - begin, request.rewinds
        return place
