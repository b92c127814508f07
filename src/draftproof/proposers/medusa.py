"""Medusa: heads on the target's last hidden state guess the tokens after the next one.

Head k guesses all nodes of depth k at once: a draft costs one skinny pass of the heads, and none of
a model. The heads do not know what stands between. Cai et al. 2024 (arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.drafting.base import Drafter
from draftproof.heads.files import load
from draftproof.heads.module import Heads, Ranks, checked_tree
from draftproof.heads.placed import placed
from draftproof.runners.base import Load, Target
from draftproof.shapes import best_first
from draftproof.tree import TokenTree
from draftproof.writing import Writing

WIDTH = 10  # guesses of a head for a grown tree, as in the released ones
Guesses = tuple[list[int], list[float]]  # tokens, best first, and their shares


class Medusa(Drafter):
    """Drafts with heads: a folder or file of them, or a `Heads`.

    tree: paths of ranks, the same in every step (`medusa_choices` in the paper's code);
    "calibrated", the same too, the best by the accuracies that lie with the heads; "grown", in
    every step the best by what the heads say then. None: what lies with the heads, else grown.
    nodes: of a calibrated or grown tree, without node 0. min_confidence: nodes that the heads give
    less are left out. Raises `ValueError`.
    """

    name = "medusa"
    taps: tuple[int, ...] = (-1,)  # what the LM head sees

    drafting_cost = 0.15

    def __init__(
        self,
        heads: Heads | str | Path,
        tree: str | Sequence[Sequence[int]] | None = None,
        *,
        nodes: int = 16,
        min_confidence: float = 0.0,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes={nodes} drafts nothing: use 1 or more")
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence={min_confidence} is not within [0, 1]")
        self.heads = heads = heads if isinstance(heads, Heads) else load(heads)
        if heads.exit is not None:
            raise ValueError(
                f"these heads read layer {heads.exit}: use them with EarlyExit, early-exit by name"
            )
        self.nodes, self.min_confidence = nodes, min_confidence
        if tree is None:
            tree = heads.tree or ("calibrated" if heads.accuracies else "grown")
        if tree == "calibrated" and not (tree := _paths(heads.accuracies or (), nodes)):
            raise ValueError("the heads came without accuracies: use tree='grown'")
        if isinstance(tree, str) and tree != "grown":
            raise ValueError(f"tree {tree!r} is unknown: use calibrated, grown, or a list of paths")
        self.paths = [] if tree == "grown" else checked_tree(tree, heads.heads)
        self.depth = max(map(len, self.paths), default=heads.heads)
        self.width = max(map(max, self.paths), default=min(nodes, WIDTH) - 1) + 1

    def bind(self, target: Target, load: Load) -> None:
        self.placed = placed(self.heads, target)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        rows: dict[int, Tensor] = {}
        states = {r.key: state for r in requests if (state := _state(r)) is not None}
        if states:
            h = torch.stack([*states.values()])
            logits = self.placed.logits(h, self.depth)  # (K, N, V)
            # On the CPU after one synchronisation, in what the race is fast in.
            logits = logits.to("cpu", torch.promote_types(logits.dtype, torch.float32))
            rows = dict(zip(states, logits.unbind(1), strict=True))
        return [self._tree(request, rows.get(request.key, ())) for request in requests]

    def _tree(self, request: Writing, rows: Tensor | tuple[()]) -> TokenTree:
        """From the logits (V,) of each head; without places that there are no guesses for."""
        guesses = [self._guesses(request, row, k) for k, row in enumerate(rows)]
        paths = self.paths or _paths([shares for _, shares in guesses], self.nodes)
        tokens, parents, scores = [request.tokens[-1]], [-1], [1.0]
        nodes: dict[Ranks, int] = {(): 0}
        for path in paths:
            parent, k, rank = nodes.get(path[:-1]), len(path) - 1, path[-1]
            if parent is None or k >= len(guesses) or rank >= len(guesses[k][0]):
                continue
            score = scores[parent] * guesses[k][1][rank]
            if score >= self.min_confidence:
                nodes[path] = len(tokens)
                tokens.append(guesses[k][0][rank])
                parents.append(parent)
                scores.append(score)
        return TokenTree(tokens, parents, scores=scores)

    def _guesses(self, request: Writing, row: Tensor, k: int) -> Guesses:
        try:
            return _guesses(request, row, k, self.width)
        except sampling.NoCandidate:
            if not sampling.healthy(row):
                raise
            return [], []  # the request bars all that these heads can guess


def _state(request: Writing) -> Tensor | None:
    """The hidden state (d,) that wrote the request's last token; None if it is not known."""
    feedback = request.feedback
    if feedback is not None and -1 in feedback.hidden:
        ran = [feedback.tree.tokens[node] for node in feedback.path]
        if request.tokens[-1 - len(ran) : -1] == ran:  # nothing else was written since
            return feedback.hidden[-1][feedback.path[-1]]
    return None


def _guesses(request: Writing, row: Tensor, k: int, count: int) -> Guesses:
    """At most `count` tokens of depth k + 1, and how likely the target picks each.

    The head does not know the path there, so neither do penalties. Under the coupled rule its
    softmax is right if its logits x are off by Gumbel noise; then, as the pick is the argmax of
    x + T g, with g known, the softmax of that is right at any temperature T.
    """
    params, history = request.params, request.history
    if not request.races:
        law = sampling.law(row, params, history, ())
        best = law.topk(min(count, int((law > 0).sum())))
        return best.indices.tolist(), best.values.tolist()
    at = len(request.tokens) + k
    ids, shares = sampling.race(row, params, history, (), request.noise, at, count)
    if params.temperature > 0:
        g = request.noise.gumbel(at, len(row), torch.tensor(ids))
        shares = (params.temperature * (torch.tensor(shares).log() + g)).softmax(0).tolist()
    return ids, shares


def _paths(shares: Sequence[Sequence[float]], nodes: int) -> list[Ranks]:
    """The best `nodes` paths of guesses that have a chance at all."""
    return [path for path, share in best_first(shares, nodes + 1)[1:] if share > 0]
