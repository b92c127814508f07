"""Lookahead decoding: Jacobi iterations guess n-grams, which are verified beside them.

A window of guesses, refined by every pass, runs along as side branches of the tree; each of its
columns yields an n-gram, and n-grams that begin with the last token are proposed. Needs no draft
and no training. Fu et al. 2024 (arXiv 2402.02057).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from weakref import WeakKeyDictionary

from draftproof.drafting.base import Drafter
from draftproof.runners.base import Load, Target
from draftproof.tree import TokenTree
from draftproof.writing import Writing

KEYS = 4096  # first tokens in a pool
TRUST = 0.7  # that a token of a guess is accepted: ranks it among other methods' nodes

Guess = tuple[int, ...]


@dataclass(slots=True)
class State:
    """Of one request: the window, the pool, and where the last tree had them.

    rows[0] stands behind the last token, which is its column 0; rows[r][j] hangs from
    rows[r - 1][j] (rows[1][0] from the last token itself).
    """

    rows: list[list[int]]
    rng: Random
    pool: OrderedDict[int, OrderedDict[Guess, None]] = field(default_factory=OrderedDict)
    indexed: int = 0  # tokens of the text whose n-grams are in the pool
    rewinds: int = 0  # of the text then
    tree: TokenTree | None = None  # the last one, with the window in it
    passes: int = 0  # of the text before that tree
    ends: list[int] = field(default_factory=list)  # its nodes of the last row, by column


class Lookahead(Drafter):
    """Drafts by guessing ahead.

    window: columns, guessed in parallel. ngram: tokens of an n-gram, its first one included; the
    window has ngram - 1 rows. guesses: n-grams verified in a step. from_text: take n-grams from
    prompt and output too. A pass runs up to (window + guesses) (ngram - 1) tokens.
    """

    wants_best = True
    name = "lookahead"

    def __init__(
        self, window: int = 5, ngram: int = 4, guesses: int = 5, *, from_text: bool = True
    ) -> None:
        if window < 1 or ngram < 2 or guesses < 1:
            raise ValueError("window and guesses must be 1 or more, ngram 2 or more")
        self.window, self.ngram, self.guesses = window, ngram, guesses
        self.from_text = from_text
        self._states: WeakKeyDictionary[Writing, State] = WeakKeyDictionary()

    def bind(self, target: Target, load: Load) -> None:
        self._states.clear()

    def release(self, request: Writing) -> None:
        self._states.pop(request, None)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: Writing) -> TokenTree:
        state = self._states.get(request)
        if state is None:
            rng = Random(request.seed)
            first = [rng.choice(request.prompt) for _ in range(self.window - 1)]
            state = self._states[request] = State([first], rng)
        self._harvest(request, state)
        if self.from_text:
            self._read(request, state)
        return self._tree(request, state)

    def _harvest(self, request: Writing, state: State) -> None:
        """One Jacobi step: n-grams into the pool, the window one row on."""
        feedback, tree, state.tree = request.feedback, state.tree, None
        others = request.passes > state.passes + 1  # drafted since
        if others or tree is None or feedback is None or feedback.best is None:
            return
        found = feedback.where(tree)
        # -1: another method's budget cut the window, or a row is not finite.
        fresh = [feedback.best[at] if (at := found[node]) >= 0 else -1 for node in state.ends]
        if min(fresh) < 0:
            return
        for j, token in enumerate(fresh):  # behind an end of text there is nothing to guess
            fresh[j] = state.rng.choice(request.prompt) if token in request.stop_ids else token
        for node, token in zip(state.ends, fresh, strict=True):
            column = tree.path(node)[-len(state.rows) :]
            self._remember(state, (*(tree.tokens[at] for at in column), token))
        state.rows.append(fresh)
        if len(state.rows) == self.ngram:  # else the window is still being filled
            state.rows.pop(0)
            state.rows[0] = state.rows[0][1:]

    def _read(self, request: Writing, state: State) -> None:
        tokens, since = request.tokens, min(state.indexed, request.shortest(state.rewinds) + 1)
        for end in range(max(since, self.ngram), len(tokens) + 1):
            self._remember(state, tuple(tokens[end - self.ngram : end]))
        state.indexed, state.rewinds = len(tokens) + 1, request.rewinds

    def _remember(self, state: State, ngram: Guess) -> None:
        """Least recent first; a guess that comes again is fresh again."""
        known = state.pool.setdefault(ngram[0], OrderedDict())
        known[ngram[1:]] = None
        known.move_to_end(ngram[1:])
        if len(known) > self.guesses:
            known.popitem(last=False)
        state.pool.move_to_end(ngram[0])
        if len(state.pool) > KEYS:
            state.pool.popitem(last=False)

    def _tree(self, request: Writing, state: State) -> TokenTree:
        root, room = request.tokens[-1], request.room - 1
        tokens, parents, scores = [root], [-1], [1.0]
        known: dict[tuple[int, int], int] = {}  # guesses with the same beginning share its nodes

        def add(parent: int, token: int, score: float) -> int:
            tokens.append(token)
            parents.append(parent)
            scores.append(score)
            return len(tokens) - 1

        for guess in reversed(state.pool.get(root, ())):
            node = 0
            for depth, token in enumerate(guess[:room], 1):
                if (at := known.get((node, token))) is None:
                    at = known[node, token] = add(node, token, TRUST**depth)
                node = at
        if self.window + len(state.rows) - 2 > room:  # too near the end to learn anything
            return TokenTree(tokens, parents, scores=scores)
        column = [0]
        for token in state.rows[0]:
            column.append(add(column[-1], token, 1.0))
        for row in state.rows[1:]:
            column = [add(node, token, 1.0) for node, token in zip(column, row, strict=True)]
        state.tree = TokenTree(tokens, parents, scores=scores)
        state.ends, state.passes = column, request.passes
        return state.tree
