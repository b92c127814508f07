"""Suffix automata: what followed the longest match, in the request's text or in earlier outputs.

The continuations of a match form a tree weighted by how often each followed. Oliaro et al. 2024
(SuffixDecoding, arXiv 2411.04975); Hu et al. 2024 (SAM decoding, arXiv 2411.10666).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakKeyDictionary

from draftproof.drafting.automaton import Automaton
from draftproof.drafting.base import Drafter, alone
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

LONGEST = 64  # tokens of a context that are matched against earlier outputs
SEPARATOR = -1  # between two outputs: no token


@dataclass(slots=True)
class Own:
    """The automaton of one request's text, and when that was."""

    automaton: Automaton = field(default_factory=Automaton)
    rewinds: int = 0


class SuffixAutomaton(Drafter):
    """Drafts from the request's own text and from what earlier requests wrote.

    A request that is sampled under another rule than the coupled one is drafted for from its own
    text alone: there another draft is another text, and the same seed must give the same one.

    num_draft_tokens: nodes of a tree. min_match: tokens that must match. min_share: a continuation
    that followed in a smaller share of all cases is left out. corpus: tokens of earlier outputs
    that are remembered (the latest; half of them at least), shared by all requests; 0: none.
    """

    name = "suffix"
    promise, trust = 0.78, (0.45, -1.2, 0.45)  # as of n-grams

    def __init__(
        self,
        num_draft_tokens: int = 10,
        *,
        min_match: int = 2,
        min_share: float = 0.1,
        corpus: int = 100_000,
    ) -> None:
        if num_draft_tokens < 1 or min_match < 1 or corpus < 0:
            raise ValueError("num_draft_tokens and min_match must be 1 or more, corpus 0 or more")
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share={min_share} is not within [0, 1]")
        self.num_draft_tokens, self.min_match = num_draft_tokens, min_match
        self.min_share, self.corpus = min_share, corpus
        self._own: WeakKeyDictionary[Writing, Own] = WeakKeyDictionary()

    def bind(self, target: Target, load: Load) -> None:
        self.close()

    def close(self) -> None:
        self._own.clear()
        self._old, self._new = Automaton(), Automaton()  # of earlier outputs, two generations

    def release(self, request: Writing) -> None:
        if self._own.pop(request, None) is None or not self.corpus:
            return
        for token in [*request.output, SEPARATOR]:
            self._new.append(token)
        if self._new.size >= self.corpus // 2:
            self._old, self._new = self._new, Automaton()

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: Writing) -> TokenTree:
        own = self._follow(request)
        # The longest suffix that occurred before: the link of the state of the whole text.
        found = [(own.length[own.link[own.last]], own, own.link[own.last])]
        for earlier in () if alone(request) else (self._new, self._old):
            state, length = earlier.match(request.tokens[-LONGEST:])
            found.append((length, earlier, state))
        length, automaton, state = max(found, key=lambda each: each[0])
        if length < self.min_match or request.room < 2:
            return TokenTree.chain(request.tokens[-1:])
        return self._grown(automaton, state, request.tokens[-1], request.room - 1)

    def _follow(self, request: Writing) -> Automaton:
        """The automaton of the request's text, which only grows unless it drafts for a draft."""
        own = self._own.setdefault(request, Own())
        kept = min(own.automaton.size, request.shortest(own.rewinds))
        own.rewinds = request.rewinds
        while own.automaton.size > kept:
            own.automaton.undo()
        for token in request.tokens[kept:]:
            own.automaton.append(token)
        return own.automaton

    def _grown(self, automaton: Automaton, state: int, root: int, depth: int) -> TokenTree:
        """The likeliest continuations, best first, by how often each followed."""
        tokens, parents, scores, depths = [root], [-1], [1.0], [0]
        order = count()
        heap: list[tuple[float, int, int, int, int]] = []  # -share, order, parent, token, state

        def push(parent: int, at: int, share: float) -> None:
            following = {t: s for t, s in automaton.next[at].items() if t != SEPARATOR}
            total = sum(automaton.count[s] for s in following.values())
            for token, to in following.items():
                part = share * automaton.count[to] / total if total else 0.0
                if part >= self.min_share and depths[parent] < depth:
                    heapq.heappush(heap, (-part, next(order), parent, token, to))

        push(0, state, 1.0)
        while heap and len(tokens) <= min(self.num_draft_tokens, self.useful):
            share, _, parent, token, to = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            scores.append(-share)
            depths.append(depths[parent] + 1)
            push(len(tokens) - 1, to, -share)
        return TokenTree(tokens, parents, scores=scores)
