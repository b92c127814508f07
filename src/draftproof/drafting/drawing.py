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

    row: the model's logits (V,), of which there may be more or fewer than the target's
    `vocabulary`: no token is drafted that the model has no row for. Raises `NoCandidate`.
    """
    if request.rule == "rejection" and request.params.temperature > 0:
        q = law(request, path, row, vocabulary)
        ids, laws = sampling.draw_distinct(q, count, request.generator(0))
        return ids, [float(q[token]) for token in ids], laws
    return race(request, path, row, count, vocabulary)


def fitted(row: Tensor, vocabulary: int) -> Tensor:
    """Logits (V,) over the target's ids, as its rules want them: -inf where the model has none."""
    more = vocabulary - row.shape[0]
    if not more:
        return row
    return torch.nn.functional.pad(row, (0, more), value=-torch.inf) if more > 0 else row[:more]


def law(request: Request, path: Sequence[int], row: Tensor, vocabulary: int) -> Tensor:
    """The model's law (V,) over its own ids; 0 everywhere if a rule bars them all."""
    own, row = row.shape[0], fitted(row, vocabulary)
    try:
        p = sampling.law(row, request.params, request.history, path).cpu()
    except sampling.NoCandidate:
        if not _barred(request, row[:own]):
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
    params, position, own = request.params, len(request.tokens) + len(path), row.shape[0]
    if request.rule != "coupled" and params.temperature:
        params = replace(params, temperature=0.0)
    row, noise = fitted(row, vocabulary), request.noise
    try:
        ids, shares = sampling.race(row, params, request.history, path, noise, position, count)
    except sampling.NoCandidate:
        if not _barred(request, row[:own]):
            raise
        return [], [], []
    if own < vocabulary:
        shares = [share for token, share in zip(ids, shares, strict=True) if token < own]
        ids = [token for token in ids if token < own]
    return ids, shares, []


def _barred(request: Request, row: Tensor) -> bool:
    """Whether a rule from outside left nothing of a healthy row: no fault of the draft."""
    return request.history.process is not None and bool(row.isfinite().all())
