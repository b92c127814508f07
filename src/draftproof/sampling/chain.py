"""The chain from logits to a pick: every logit -> token decision of target and drafts.

One row of logits goes through: penalties, bias, bans (`adjust`); temperature, min_p, top_k, top_p
(`survivors`); and the pick: the argmax at temperature 0, else an exponential race whose noise is a
function of (seed, stream, position, token id) alone. Contract: a row is (V,), is never modified,
and its result never depends on which other rows exist; every tie goes to the lowest id; float64
after `adjust`. A row with NaN or +inf, or without any token left, raises `NoCandidate`.

Does not know trees, requests, text, or who is asking: the target and its drafts call the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.sampling import compiled as fast
from draftproof.sampling.history import History, adjust, allowed
from draftproof.sampling.noise import Noise
from draftproof.sampling.params import SamplingParams


class NoCandidate(ValueError):
    """A row of logits that no token can be picked from: NaN, +inf, or every token banned."""


def healthy(row: Tensor) -> bool:
    """Whether a token can be picked from the row (V,) where nothing bans any."""
    return bool((row < torch.inf).all()) and bool((row > -torch.inf).any())


def _checked(value: float) -> float:
    """The largest logit of a row, if a token can be picked from that row."""
    if not math.isfinite(value):
        kinds = {math.inf: "+inf", -math.inf: "-inf everywhere: every token is banned"}
        raise NoCandidate(f"no token can be picked, the logits are {kinds.get(value, 'NaN')}")
    return value


def _top(row: Tensor) -> float:
    return _checked(float(row.max()))  # max propagates NaN


def _best(row: Tensor, k: int) -> Tensor:
    """The ids of the k largest of a row, in descending order, ties to the lowest id; (k,)."""
    border = torch.topk(row, k, sorted=False).values.min()
    ids = (row >= border).nonzero()[:, 0]
    if len(ids) > k:
        x = row[ids]
        above = ids[x > border]
        ids = torch.cat((above, ids[x == border][: k - len(above)])).sort().values
    return ids[row[ids].sort(descending=True, stable=True).indices]


def survivors(logits: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """Temperature (> 0), min_p, top_k, top_p, each on what the one before left, of a row (V,).

    Returns ids (K,), ascending, or None for all V; and their float64 logits over the temperature,
    relative to the row's largest. Every one of the three keeps a prefix of the same order (logit
    descending, id ascending); top_p the shortest with at least that share of the mass (Holtzman et
    al. 2019, section 3.1), at least one token.
    """
    if not params.whole and (made := fast.survivors(logits, params)):
        return made
    top, V = _top(logits), len(logits)
    k = min(params.top_k, V) if params.top_k > 0 else V
    floor = params.floor

    def scale(x: Tensor) -> Tensor:
        return (x.double() - top) / params.temperature

    if k == V and params.min_p == 0 and params.top_p == 1:
        return None, scale(logits)
    if k < V:
        ids = _best(logits, k)
        scaled = scale(logits[ids])
    else:
        whole = scale(logits)
        if params.min_p == 0:  # only top_p: grow the prefix until it holds enough mass
            total, size = whole.exp().sum() * params.top_p, min(64, V)
            while True:
                ids = _best(logits, size)
                scaled = whole[ids]
                if size == V or scaled.exp().sum() > total * (1 + 1e-9):
                    break
                size = min(8 * size, V)
            return _cut(ids, scaled, total)
        ids = (whole >= floor).nonzero()[:, 0]
        ids = ids[logits[ids].sort(descending=True, stable=True).indices]
        scaled = whole[ids]
    kept = scaled >= floor
    ids, scaled = ids[kept], scaled[kept]
    return _cut(ids, scaled, scaled.exp().sum() * params.top_p if params.top_p < 1 else None)


def _cut(ids: Tensor, scaled: Tensor, mass: Tensor | None) -> tuple[Tensor, Tensor]:
    """The shortest prefix with at least `mass` (None: all of it), by ascending id."""
    alive = scaled > -math.inf
    ids, scaled = ids[alive], scaled[alive]
    if mass is not None:
        before = int((scaled.exp().cumsum(0) < mass).sum())  # tokens that do not yet reach it
        ids, scaled = ids[: before + 1], scaled[: before + 1]
    ids, order = ids.sort()
    return ids, scaled[order]


LEAST = 1e-3  # temperature, below which float32 could overflow: scores in float64


def _winners(
    logits: Tensor, params: SamplingParams, noise: Noise, position: int, k: int, mass: bool
) -> tuple[list[tuple[int, float]], float]:
    """The k best (id, scaled logit) of the exponential race, and log of the whole mass.

    Score of token i: l_i - log(E_i), l_i = (x_i - max x) / temperature: argmax p_i / E_i.
    Since E >= u, l_i + g_i with g_i = -log(u_i) bounds the score from above. Let t be the k-th best
    exact score among the k best bounds. At least k tokens score t or more, so every winner does,
    and so does its bound. Hence the tokens with bound >= t - slack hold all winners, and only they
    get an exact score. Slack covers float32: of such a token l_i lies in [t - 23, 0] because
    log(E_i) > -23, and g_i in [0, 23], so its bound is off by less than 2e-6 (|t| + 64).
    """
    V, whole = len(logits), params.whole
    can = logits.device.type == "cpu" and params.temperature >= LEAST
    if can and (made := noise.race(logits, params, position, k, mass)):
        return list(zip(*made[:2], strict=True)), made[2]
    if whole:
        ids, x, top, temperature = None, logits, _top(logits), params.temperature
    else:
        ids, x = survivors(logits, params)
        top, temperature = 0.0, 1.0
    exact = x.dtype == torch.float64 or temperature < LEAST
    bound = x.to(torch.float64 if exact else torch.float32) - top  # (K,)
    bound /= temperature
    log_mass = math.log(bound.exp().sum().item()) if mass else 0.0
    bound += noise.gumbel(position, V, None if ids is None else ids.cpu()).to(bound.device)

    def scores(chosen: Tensor) -> list[tuple[float, int, float]]:
        tokens = (chosen if ids is None else ids[chosen]).tolist()
        scaled = [(value - top) / temperature for value in x[chosen].tolist()]
        found = [
            (s - math.log(noise.exact(position, token)), token, s)
            for token, s in zip(tokens, scaled, strict=True)
            if s > -math.inf
        ]
        return sorted(found, key=lambda entry: (-entry[0], entry[1]))

    first = bound.argmax()[None] if k == 1 else _best(bound, min(k, len(bound)))
    found = scores(first)
    if len(found) == k < len(bound):
        t = found[-1][0]
        chosen = (bound >= t - 2.0**-18 * (abs(t) + 64)).nonzero()[:, 0]
        if len(chosen) > k:
            found = scores(chosen)[:k]
    return [(token, s) for _, token, s in found], log_mass


def pick(
    logits: Tensor,
    params: SamplingParams,
    history: History,
    path: Sequence[int],
    noise: Noise,
    position: int,
) -> int:
    """The coupled pick of a row (V,): a function of its arguments and `noise`'s (seed, stream).

    Temperature 0: the argmax of the adjusted logits; else argmax p_i / E_i over the survivors.
    Raises `NoCandidate`. (Daliri, Musco, Suresh 2024, "Coupling without communication and
    drafter-invariant speculative decoding".)
    """
    row, guide = adjust(logits, params, history, path), history.guide
    if guide is None:
        return _picked(row, params, noise, position)
    # The winner among all is the winner among the allowed, unless the others decide who races.
    if params.temperature == 0 or params.whole:
        token = _picked(row, params, noise, position)
        if guide.allows(history.output, path, token):
            return token
    return _picked(guide.masked(history.output, path, row), params, noise, position)


def _picked(row: Tensor, params: SamplingParams, noise: Noise, position: int) -> int:
    if params.temperature == 0:
        return argmax(row)
    return _winners(row, params, noise, position, 1, mass=False)[0][0][0]


def argmaxes(logits: Tensor) -> list[int]:
    """The first argmax of every row (N, V), -1 where there is nothing to pick.

    The picks at temperature 0 of rows without adjustments. One synchronisation with an accelerator.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()  # bfloat16's argmax is slow
    if wide.device.type == "cpu":  # numpy's is four times as fast as torch's, and both find NaN
        rows = wide.detach().numpy()
        tokens = [int(row.argmax()) for row in rows]
        return [t if math.isfinite(row[t]) else -1 for t, row in zip(tokens, rows, strict=True)]
    best = wide.argmax(dim=-1, keepdim=True)  # the first on ties; finds NaN and +inf too
    values = wide.gather(-1, best)
    found = torch.cat((best.double(), values.double()), dim=-1).tolist()
    return [int(token) if math.isfinite(value) else -1 for token, value in found]


def argmax(row: Tensor) -> int:
    """The first argmax of a row (V,). Raises `NoCandidate`."""
    (token,) = argmaxes(row[None])
    if token < 0:
        _top(row)
    return token


def race(
    logits: Tensor,
    params: SamplingParams,
    history: History,
    path: Sequence[int],
    noise: Noise,
    position: int,
    k: int,
) -> tuple[list[int], list[float]]:
    """The k best tokens of the race, best first (the first is `pick`), and their probabilities.

    Probabilities are the survivors' law (temperature 0: softmax at temperature 1); accurate to
    float32, they rank and never accept. Fewer than k if fewer survive. Raises `NoCandidate`.
    Without replacement from that law (Kool et al. 2019, "Stochastic beams and where to find them").
    """
    row = allowed(logits, params, history, path)
    if params.temperature > 0:
        found, log_mass = _winners(row, params, noise, position, k, mass=True)
        return [i for i, _ in found], [math.exp(s - log_mass) for _, s in found]
    if made := fast.race(row, 0.0, 0, 0, 0, k, mass=True):
        return made[0], [math.exp(s - made[2]) for s in made[1]]
    top = _top(row)
    ids = _best(row, min(k, len(row)))
    relative = row.to(torch.float64 if row.dtype == torch.float64 else torch.float32) - top
    p = relative[ids].double().exp() / relative.exp().sum().double()
    ids = ids[row[ids] > -math.inf]
    return ids.tolist(), p[: len(ids)].tolist()


def law(logits: Tensor, params: SamplingParams, history: History, path: Sequence[int]) -> Tensor:
    """The distribution that `pick` follows, (V,) float64; one-hot at temperature 0."""
    row = allowed(logits, params, history, path)
    p = torch.zeros(len(row), dtype=torch.float64, device=row.device)
    if params.temperature == 0:
        p[argmax(row)] = 1.0
        return p
    ids, scaled = survivors(row, params)
    weights = scaled.exp()
    weights /= weights.sum()
    if ids is None:
        return weights
    p[ids] = weights
    return p


def draw(law: Tensor, rng: torch.Generator) -> int:
    """One draw from a distribution (V,), normalised or not, by its inverse; never an id with 0."""
    cdf = law.double().cumsum(0)
    total = float(cdf[-1])
    if not 0 < total < math.inf:
        raise NoCandidate(f"no token can be drawn: the probabilities sum to {total}")
    u = float(torch.rand((), generator=rng, dtype=torch.float64, device=rng.device))
    below = min(u * total, math.nextafter(total, 0.0))
    # the first id whose cdf exceeds `below`: the cdf rises there, so its probability is not 0
    return int(torch.searchsorted(cdf, below, right=True))


def draw_distinct(law: Tensor, k: int, rng: torch.Generator) -> tuple[list[int], list[Tensor]]:
    """At most k siblings drawn from a law (V,) without replacement, and the law of each draw.

    The law of a draw is the given one without the earlier siblings, normalised (Sequoia, Chen et
    al. 2024, Algorithm 2); fewer than k if fewer tokens have probability.
    """
    ids: list[int] = []
    laws: list[Tensor] = []
    for _ in range(min(k, int((law > 0).sum()))):
        ids.append(draw(law, rng))
        laws.append(law)
        law = law.clone()
        law[ids[-1]] = 0
        law = law / law.sum()
    return ids, laws


def logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> dict[int, float]:
    """Log-softmax of the raw row (V,) for its `top` best, best first, then each of `tokens`.

    Before penalties and temperature, as vLLM's `raw_logprobs`. Raises `NoCandidate`.
    """
    relative = logits.double() - _top(logits)
    log_mass = relative.exp().sum().log()
    ids = [*(_best(logits, min(top, len(logits))).tolist() if top else ()), *tokens]
    values = relative[torch.tensor(ids, dtype=torch.long, device=logits.device)] - log_mass
    return dict(zip(ids, values.tolist(), strict=True))
