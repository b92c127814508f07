"""Slow and obvious references, to compare the package with. Of it they import `TokenTree` alone.

Trees: by following parents one node at a time. The rejection rule: in plain floats, by
enumeration of everything that can be drawn, so that its law comes out exactly, with no sampling.
Here a law is a list of floats, and a toy model is a list of such rows: one per previous token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from random import Random

import torch
from hypothesis import strategies as st

from draftproof.tree import TokenTree

Law = Sequence[float]
Model = Sequence[Law]
Sequences = dict[tuple[int, ...], float]  # the law of token sequences
Outcome = tuple[float, list[tuple[int, Law]]]  # probability, siblings drawn: (token, law claimed)
Process = Callable[[int, int], list[Outcome]]  # (previous token, how many) -> all that may happen

# --- trees ---


@st.composite
def trees(draw: st.DrawFn, vocabulary: int = 3, max_nodes: int = 12) -> TokenTree:
    """Any tree: few tokens, so that siblings repeat them; no laws, sometimes scores."""
    n = draw(st.integers(1, max_nodes))
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=n, max_size=n))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, n))]
    scores = st.lists(st.floats(-9, 9), min_size=n, max_size=n)
    return TokenTree(tokens, parents, scores=draw(st.none() | scores))


def path(tree: TokenTree, i: int) -> list[int]:
    """Nodes from node 0 to node i."""
    return [] if i < 0 else [*path(tree, tree.parents[i]), i]


def sequence(tree: TokenTree, i: int) -> tuple[int, ...]:
    """Tokens from node 0 to node i: what the node stands for."""
    return tuple(tree.tokens[j] for j in path(tree, i))


def longest_match(tree: TokenTree, picks: Sequence[int]) -> list[int]:
    """Of all nodes on whose path every token is its parent's pick: the deepest, then the first."""
    paths = [path(tree, i) for i in range(len(tree))]

    def right(p: list[int]) -> bool:
        return all(tree.tokens[c] == picks[u] for u, c in pairwise(p))

    return max(filter(right, paths), key=len)  # the first of the longest


# --- toy models ---


def model(vocabulary: int, seed: int, peak: float = 2.0) -> Model:
    """A toy language model: a law per previous token, the more uneven the higher `peak`."""
    rng = Random(seed)
    rows = [[rng.random() ** peak for _ in range(vocabulary)] for _ in range(vocabulary)]
    return [[x / sum(row) for x in row] for row in rows]


@st.composite
def laws(draw: st.DrawFn, vocabulary: int = 4) -> Law:
    """A law with zeros, ties and peaks."""
    weights = [st.sampled_from([0, 0, 1, 1, 2, 5, 30])] * vocabulary
    w = draw(st.tuples(*weights).filter(any))
    return [x / sum(w) for x in w]


# --- the rejection rule ---


def one_round(r: Law, t: int, q: Law) -> tuple[float, Law]:
    """Token t drawn from q against r: the probability to accept it, what is left of r if not."""
    accept = min(1.0, r[t] / q[t]) if q[t] > 0 else float(r[t] > 0)
    left = [max(a - b, 0.0) for a, b in zip(r, q, strict=True)]
    total = sum(left)
    return accept, [x / total for x in left] if total > 0 else r


def one_hot(t: int, vocabulary: int) -> Law:
    return [float(i == t) for i in range(vocabulary)]


def rejection_walk(tree: TokenTree, p: Model, coins: Sequence[float]) -> tuple[list[int], int]:
    """The walk of `verify_rejection`: coins[c] decides on node c, coins[0] draws the bonus."""
    u, walked = 0, [0]
    while True:
        r, accepted = p[u], None
        for c in range(1, len(tree)):
            if tree.parents[c] == u and accepted is None:
                t = tree.tokens[c]
                q = one_hot(t, len(r)) if tree.laws is None else tree.laws[c].tolist()
                accept, left = one_round(r, t, q)
                if coins[c] < accept:
                    accepted = c
                else:
                    r = left
        if accepted is None:
            below = 0.0
            for token, x in enumerate(r):
                below += x
                if below > coins[0] * sum(r):
                    return walked, token
        walked.append(u := accepted)


def step_law(
    target: Model, process: Process, expansion: Sequence[int], last: int, rounds=one_round
) -> Sequences:
    """What one step emits after token `last`: the exact law of accepted tokens + bonus.

    expansion: how many children the nodes of each depth get. What is drawn below a node does not
    depend on its siblings, so a subtree may be enumerated after its root was accepted.
    """
    out: Sequences = defaultdict(float)
    if not expansion:
        return {(t,): x for t, x in enumerate(target[last])}
    below = {
        t: step_law(target, process, expansion[1:], t, rounds) for t in range(len(target[last]))
    }
    for alive, siblings in process(last, expansion[0]):
        r = target[last]
        for t, q in siblings:
            accept, left = rounds(r, t, q)
            for rest, x in below[t].items():
                out[t, *rest] += alive * accept * x
            alive, r = alive * (1 - accept), left
        for t, x in enumerate(r):
            out[(t,)] += alive * x
    return out


def loop_law(step: Callable[[int], Sequences], length: int, last: int = 0) -> Sequences:
    """The first `length` tokens after `last` when step follows step: their exact joint law."""
    steps: dict[int, Sequences] = {}
    done: Sequences = defaultdict(float)
    todo: Sequences = {(): 1.0}
    while todo:
        more: Sequences = defaultdict(float)
        for history, x in todo.items():
            end = history[-1] if history else last
            if end not in steps:
                steps[end] = step(end)
            for new, y in steps[end].items():
                joined = (*history, *new)[:length]
                (done if len(joined) == length else more)[joined] += x * y
        todo = more
    return done


def plain_law(target: Model, length: int) -> Sequences:
    """The first `length` tokens of plain decoding after token 0: what every method must give."""
    return loop_law(lambda last: {(t,): x for t, x in enumerate(target[last])}, length)


def group_law(p: Law, process: Process, k: int) -> tuple[Law, float]:
    """One group of k siblings: the law of the first token, the probability that one is accepted."""
    emitted = step_law([p] * len(p), process, [k], 0)
    first = loop_law(lambda _: emitted, 1)
    accepted = sum(x for tokens, x in emitted.items() if len(tokens) == 2)
    return [first[(t,)] for t in range(len(p))], accepted


def total_variation(a: Mapping, b: Mapping) -> float:
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in {*a, *b}) / 2


# --- how siblings are drawn, and from which laws ---


def iid(draft: Model) -> Process:
    """Independent draws from one draft (one sibling: Leviathan; more: SpecInfer)."""
    return lambda last, k: several([draft] * k)(last, k)


def several(drafts: Sequence[Model]) -> Process:
    """One sibling from each of several drafts (SpecInfer)."""

    def process(last: int, k: int) -> list[Outcome]:
        outcomes: list[Outcome] = [(1.0, [])]
        for draft in drafts[:k]:
            q = draft[last]
            outcomes = [
                (x * q[t], [*siblings, (t, q)]) for x, siblings in outcomes for t in _support(q)
            ]
        return outcomes

    return process


def without_replacement(draft: Model) -> Process:
    """Sequoia: each law is the draft's with the earlier siblings removed; uniform if none left."""

    def process(last: int, k: int) -> list[Outcome]:
        outcomes: list[Outcome] = [(1.0, [])]
        for _ in range(k):
            grown: list[Outcome] = []
            for x, siblings in outcomes:
                gone = {t for t, _ in siblings}
                q = [0.0 if t in gone else y for t, y in enumerate(draft[last])]
                if sum(q) == 0:
                    q = [float(t not in gone) for t in range(len(q))]
                q = [y / sum(q) for y in q]
                grown += [(x * q[t], [*siblings, (t, q)]) for t in _support(q)]
            outcomes = grown
        return outcomes

    return process


def best(draft: Model) -> Process:
    """The draft's k best tokens, not drawn at all: one-hot laws."""

    def process(last: int, k: int) -> list[Outcome]:
        q = draft[last]
        top = sorted(range(len(q)), key=lambda t: (-q[t], t))[:k]
        return [(1.0, [(t, one_hot(t, len(q))) for t in top])]

    return process


def claiming(process: Process, claim: Callable[[list, int], list]) -> Process:
    """The siblings of `process`, reported as claim(siblings, last): a lie, mostly."""
    return lambda last, k: [(x, claim(siblings, last)) for x, siblings in process(last, k)]


class Grower:
    """Trees drawn by a process: node 0 = last token, `expansion` children below."""

    def __init__(self, process: Process, expansion: Sequence[int], rng: Random):
        self.process, self.expansion, self.rng = process, expansion, rng
        self.known: dict[tuple[int, int], tuple[list, list[float]]] = {}

    def siblings(self, last: int, k: int) -> list[tuple[int, Law]]:
        if (last, k) not in self.known:
            outcomes = self.process(last, k)
            sums = list(accumulate(x for x, _ in outcomes))
            self.known[last, k] = [siblings for _, siblings in outcomes], sums
        outcomes, sums = self.known[last, k]
        return self.rng.choices(outcomes, cum_weights=sums)[0]

    def tree(self, last: int, with_laws: bool = True) -> TokenTree:
        tokens, parents, rows, level = [last], [-1], [()], [0]
        for k in self.expansion:
            below = len(tokens)
            for u in level:
                for t, q in self.siblings(tokens[u], k):
                    tokens.append(t)
                    parents.append(u)
                    rows.append(q)
            level = range(below, len(tokens))
        rows[0] = [0.0] * len(rows[1])
        claimed = torch.tensor(rows, dtype=torch.float64) if with_laws else None
        return TokenTree(tokens, parents, claimed)


def _support(q: Law) -> Iterator[int]:
    return (t for t, x in enumerate(q) if x > 0)
