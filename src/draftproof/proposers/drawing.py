"""Drawing a drafted tree's tokens from a model's rows.

Under the coupled rule a draft races the request's noise on its own law, so that it proposes what
the target is likely to pick (Daliri et al. 2024); under the rejection rule it draws from a stream
of its own and tells the laws it drew from. It draws no token that it has no row for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftproof import sampling
from draftproof.request import Request

Children = tuple[list[int], list[float], list[Tensor]]  # ids, shares, laws


def stacked(laws: Sequence[Tensor]) -> Tensor | None:
    """Laws (N, V) of a tree from those of its nodes but node 0; None without any."""
    return torch.stack([torch.zeros_like(laws[0]), *laws]) if laws else None


def children(
    request: Request, path: Sequence[int], row: Tensor, count: int, vocabulary: int
) -> Children:
    """At most `count` tokens after `path`, their probabilities, and their laws under rejection.

    row: the model's logits (V,), of which there may be fewer than the target's `vocabulary`: no
    token is drafted that the model has no row for. Raises `NoCandidate`.
    """
    if request.rule == "rejection" and request.params.temperature > 0:
        q = law(request, path, row, vocabulary)
        ids, laws = sampling.draw_distinct(q, count, request.generator(0))
        return ids, [float(q[token]) for token in ids], laws
    return race(request, path, row, count, vocabulary)


def widened(row: Tensor, vocabulary: int) -> Tensor:
    """Logits (V,) over the target's ids, as its rules want them: -inf where the model has none."""
    more = vocabulary - len(row)
    return torch.nn.functional.pad(row, (0, more), value=-torch.inf) if more > 0 else row


def law(request: Request, path: Sequence[int], row: Tensor, vocabulary: int) -> Tensor:
    """The model's law (V,) over its own ids; 0 everywhere if a rule bars them all."""
    own = len(row)
    try:
        p = sampling.law(widened(row, vocabulary), request.params, request.history, path).cpu()
    except sampling.NoCandidate:
        if not _barred(request, row):
            raise
        return torch.zeros(vocabulary, dtype=torch.float64)
    if float(p[own:].sum()) > 0:  # a rule from outside wants what the model has not
        p[own:] = 0
        p /= p.sum().clamp(min=1e-300)
    return p


def race(
    request: Request, path: Sequence[int], row: Tensor, count: int, vocabulary: int
) -> Children:
    """At most `count` tokens after `path` by the request's noise, their probabilities, no laws.

    Where the target does not use that noise (another rule), the likeliest ones.
    """
    params, position, own = request.params, len(request.tokens) + len(path), len(row)
    if request.rule != "coupled":
        params = replace(params, temperature=0.0)
    row, history, noise = widened(row, vocabulary), request.history, request.noise
    try:
        raced = sampling.race(row, params, history, path, noise, position, count)
    except sampling.NoCandidate:
        if not _barred(request, row[:own]):
            raise
        return [], [], []
    had = [(token, share) for token, share in zip(*raced, strict=True) if token < own]
    return [token for token, _ in had], [share for _, share in had], []


def _barred(request: Request, row: Tensor) -> bool:
    """Whether a rule from outside left nothing of a healthy row: no fault of the draft."""
    return request.history.process is not None and bool(row.isfinite().all())
