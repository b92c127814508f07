"""The rules of acceptance: each accepts a target's tree, and draws a draft's children.

Under the coupled rule a draft races the text's noise on its own law, so that it proposes what the
target is likely to pick (Daliri et al. 2024); under the rejection rule it draws from a stream of
its own and tells the laws it drew from. No engine, no method.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.runners.base import Output
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.verify import Ends, Typical, verify, verify_rejection, verify_typical
from draftproof.writing import VERIFIER, Children, Rule, Writing


class Racing:
    """Drafts race the text's noise, or go by what is likeliest; they tell no laws."""

    def wants_laws(self, params: SamplingParams) -> bool:
        return False

    def children(
        self,
        writing: Writing,
        path: Sequence[int],
        row: Tensor,
        count: int,
        vocabulary: int,
        *,
        stream: int = 0,
        independent: bool = False,
    ) -> Children:
        return race(writing, path, row, count, vocabulary)


@dataclass(frozen=True)
class Coupled(Racing):
    """A drafted token is accepted if the target picks it: same seed, same text, whatever drafts."""

    name = "coupled"
    lossy = False

    def races(self, params: SamplingParams) -> bool:
        return True

    def argmax_is_enough(self, writing: Writing) -> bool:
        return writing.greedy

    def accept(self, writing: Writing, tree: TokenTree, output: Output, ends: Ends) -> int | None:
        known = output.argmaxes if writing.greedy else output.picks
        return verify(tree, Picks(writing, tree, output.logits, known), ends)[1]


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling: exact in law, with coins of its own."""

    name = "rejection"
    lossy = False

    def races(self, params: SamplingParams) -> bool:
        return params.temperature == 0

    def wants_laws(self, params: SamplingParams) -> bool:
        return params.temperature > 0

    def argmax_is_enough(self, writing: Writing) -> bool:
        return False

    def accept(self, writing: Writing, tree: TokenTree, output: Output, ends: Ends) -> int | None:
        laws = Laws(writing, tree, output.logits)
        return verify_rejection(tree, laws, writing.generator(VERIFIER), ends)[1]

    def children(
        self,
        writing: Writing,
        path: Sequence[int],
        row: Tensor,
        count: int,
        vocabulary: int,
        *,
        stream: int = 0,
        independent: bool = False,
    ) -> Children:
        if not self.wants_laws(writing.params):
            return race(writing, path, row, count, vocabulary)
        q, rng = law(writing, path, row, vocabulary), writing.generator(stream)
        if not independent:
            ids, laws = sampling.draw_distinct(q, count, rng)
        elif float(q.sum()):
            ids, laws = [sampling.draw(q, rng) for _ in range(count)], [q] * count
        else:
            ids, laws = [], []
        return ids, [float(q[token]) for token in ids], laws


@dataclass(frozen=True)
class Typicality(Racing):
    """Lossy: what is typical of the target is accepted, whatever it would pick."""

    thresholds: Typical = Typical()
    name = "typical"
    lossy = True

    def races(self, params: SamplingParams) -> bool:
        return params.temperature == 0

    def argmax_is_enough(self, writing: Writing) -> bool:
        return False

    def accept(self, writing: Writing, tree: TokenTree, output: Output, ends: Ends) -> int | None:
        laws = Laws(writing, tree, output.logits)
        return verify_typical(tree, laws, self.thresholds, ends, writing.stop_ids)[1]


RULES: dict[str, Rule] = {rule.name: rule for rule in (Coupled(), Rejection(), Typicality())}


def named(rule: str | Typical | Rule) -> Rule:
    """The rule of that name, or with these thresholds. Raises `ValueError`."""
    if isinstance(rule, Typical):
        return Typicality(rule)
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if isinstance(rule, str | type) or not hasattr(rule, "accept"):
        raise ValueError(f"rule {rule!r} is unknown: use {', '.join(RULES)} or dp.Typical(...)")
    return rule


def argmax_of(output: Output) -> Sequence[int]:
    """The target's argmax after every node; -1 where a row is not finite."""
    return output.argmaxes if output.argmaxes is not None else sampling.argmaxes(output.logits)


def broken(output: Output, node: int) -> bool:
    """Whether the row after a node holds NaN or +inf."""
    if not len(output.logits):
        return output.argmaxes is not None and output.argmaxes[node] < 0
    return not bool((output.logits[node] < float("inf")).all())


class Picks:
    """The target's own token after each node of a tree, made when it is asked for.

    known: those that the runner found; -1 where it found none.
    """

    def __init__(
        self, writing: Writing, tree: TokenTree, logits: Tensor, known: Sequence[int] | None = None
    ) -> None:
        self.writing, self.tree, self.logits = writing, tree, logits
        self._position = len(writing.tokens)  # of node 0's pick; the walk writes as it goes
        self._known = known
        # One synchronisation with an accelerator, where a row at a time would take one each.
        if known is None and writing.greedy and logits.device.type != "cpu":
            self._known = sampling.argmaxes(logits)

    def __getitem__(self, node: int) -> int:
        writing = self.writing
        if self._known is not None:
            if self._known[node] >= 0:
                return self._known[node]
            if not len(self.logits):
                raise sampling.NoCandidate("no token can be picked, the logits are not finite")
        path = self.tree.path_tokens(node)
        return sampling.pick(
            self.logits[node],
            writing.params,
            writing.history,
            path,
            writing.noise,
            self._position + len(path),
        )


class Laws:
    """The target's law (V,) after each node of a tree, made when it is asked for."""

    def __init__(self, writing: Writing, tree: TokenTree, logits: Tensor) -> None:
        self._law = functools.cache(
            lambda node: sampling.law(
                logits[node], writing.params, writing.history, tree.path_tokens(node)
            ).cpu()
        )

    def __getitem__(self, node: int) -> Tensor:
        return self._law(node)


def fitted(row: Tensor, vocabulary: int) -> Tensor:
    """Logits (V,) over the target's ids, as its rules want them: -inf where the draft has none."""
    more = vocabulary - row.shape[0]
    if not more:
        return row
    return torch.nn.functional.pad(row, (0, more), value=-torch.inf) if more > 0 else row[:more]


def law(writing: Writing, path: Sequence[int], row: Tensor, vocabulary: int) -> Tensor:
    """A draft's law (V,) over its own ids; 0 everywhere where the request bars them all."""
    own, row = row.shape[0], fitted(row, vocabulary)
    try:
        p = sampling.law(row, writing.params, writing.history, path).cpu()
    except sampling.NoCandidate:
        if not sampling.healthy(row[:own]):
            raise
        return torch.zeros(vocabulary, dtype=torch.float64)
    if float(p[own:].sum()) > 0:  # a rule from outside wants what the draft has not
        p[own:] = 0
        p /= p.sum().clamp(min=1e-300)
    return p


def race(
    writing: Writing, path: Sequence[int], row: Tensor, count: int, vocabulary: int
) -> Children:
    """At most `count` tokens after `path` by the text's noise, their probabilities, no laws.

    Where the target does not race that noise, the likeliest ones.
    """
    params, position, own = writing.params, len(writing.tokens) + len(path), row.shape[0]
    if not writing.races:
        params = replace(params, temperature=0.0)
    row, noise = fitted(row, vocabulary), writing.noise
    try:
        ids, shares = sampling.race(row, params, writing.history, path, noise, position, count)
    except sampling.NoCandidate:
        if not sampling.healthy(row[:own]):
            raise
        return [], [], []
    if own < vocabulary:
        shares = [share for token, share in zip(ids, shares, strict=True) if token < own]
        ids = [token for token in ids if token < own]
    return ids, shares, []
