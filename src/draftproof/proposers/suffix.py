"""Suffix automata: what followed the longest match, in the request's text or in earlier outputs.

The continuations of a match form a tree weighted by how often each followed. Oliaro et al. 2024
(SuffixDecoding, arXiv 2411.04975); Hu et al. 2024 (SAM decoding, arXiv 2411.10666).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.drafting.base import alone
from draftproof.drafting.compiled import CompiledAutomaton, automaton
from draftproof.drafting.following import Following
from draftproof.drafting.looks import LookUp
from draftproof.drafting.own import Own
from draftproof.drafting.structures import Look
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

LONGEST = 64  # tokens of a context that are matched against earlier outputs
SEPARATOR = -1  # between two outputs: no token
OWNERS = 64  # salts whose outputs are remembered


@dataclass(slots=True)
class Earlier:
    """Outputs of requests of one salt that have ended, in two generations."""

    old: Following | CompiledAutomaton = field(default_factory=automaton)
    new: Following | CompiledAutomaton = field(default_factory=automaton)

    @property
    def size(self) -> int:
        return self.old.size + self.new.size

    def add(self, output: Sequence[int], most: int) -> None:
        self.new.extend([*output[-max(1, most // 2) :], SEPARATOR])
        if self.new.size >= most // 2:
            self.old, self.new = self.new, automaton()


class SuffixAutomaton(LookUp):
    """Drafts from the request's own text, what an encoder read for it, and earlier outputs.

    Those are what requests of its salt wrote.

    A request that is sampled under another rule than the coupled one is drafted for from its own
    text alone: there another draft is another text, and the same seed must give the same one.

    num_draft_tokens: nodes of a tree. min_match: tokens that must match. min_share: a continuation
    that followed in a smaller share of all cases is left out. corpus: tokens of earlier outputs
    that are remembered (the latest; half of them at least), shared by all requests of a salt; what
    was used least lately makes way for other salts. 0: none.
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
        self._own = Own(automaton)

    def bind(self, target: Target, load: Load) -> None:
        self.close()

    def close(self) -> None:
        self._own.clear()
        self._earlier: OrderedDict[str, Earlier] = OrderedDict()  # by salt, used last comes last

    def release(self, request: Writing) -> None:
        if not self._own.release(request) or not self.corpus:
            return
        self.age += 1  # a text's look may be at what is replaced now
        earlier = self._earlier.setdefault(request.salt, Earlier())
        self._earlier.move_to_end(request.salt)
        try:
            earlier.add(request.output, self.corpus)
        except MemoryError:  # it knows no more, and is as large as it was: begun anew
            del self._earlier[request.salt]
        while len(self._earlier) > 1 and self._too_much():
            self._earlier.popitem(last=False)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def look(self, request: Writing) -> Look | None:
        own, _, _ = self._own.of(request)
        earlier = () if alone(request) else self._of(request.salt)
        others = [each for each in earlier if isinstance(each, CompiledAutomaton)]
        if not isinstance(own, CompiledAutomaton) or len(others) < len(earlier):
            return None
        return own.look(others, LONGEST, self.min_match, self.num_draft_tokens, self.min_share)

    def _propose(self, request: Writing) -> TokenTree:
        own, kept, more = self._own.of(request)
        tokens, parents, shares = own.draft(
            kept,
            more,
            () if alone(request) else self._of(request.salt),
            LONGEST,
            self.min_match,
            min(self.num_draft_tokens, self.useful),
            request.room - 1,
            self.min_share,
        )
        return TokenTree([request.tokens[-1], *tokens], [-1, *parents], scores=[1.0, *shares])

    def _of(self, salt: str) -> Sequence[Following | CompiledAutomaton]:
        """What earlier requests of this salt wrote."""
        if salt not in self._earlier:
            return ()
        self._earlier.move_to_end(salt)
        return self._earlier[salt].new, self._earlier[salt].old

    def _too_much(self) -> bool:
        size = sum(earlier.size for earlier in self._earlier.values())
        return size > self.corpus or len(self._earlier) > OWNERS
