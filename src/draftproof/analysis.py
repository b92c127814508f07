"""The formulae: expected tokens, speed-up, the best length; and what was measured beside them.

Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), in their letters: alpha = the chance that a
drafted token is accepted, gamma (here `length`) = tokens drafted one after another, c = seconds of
drafting one of them / seconds of a target pass over one token. Their formulae take the acceptances
for independent and a pass over many tokens for as dear as a pass over one. `predict` lifts the
second assumption; `explain` says what both cost.

Pure functions of plain numbers. Knows no model, no request and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOTICED = 0.02  # relative difference of tokens per step that is worth a reason


def expected_tokens(alpha: float, length: int) -> float:
    """Tokens per step, bonus included: (1 - alpha^(length + 1)) / (1 - alpha) (eq. 1).

    Summed instead of divided: exact at 0 (1 token) and at 1 (`length` + 1). Raises `ValueError`
    unless alpha is in [0, 1] and length >= 0.
    """
    _refuse(alpha, length)
    return math.fsum(alpha**i for i in range(length + 1))


def speedup(alpha: float, length: int, c: float) -> float:
    """Plain time / speculative time per token: E / (length c + 1) (Theorem 3.8).

    Raises `ValueError` as `expected_tokens` does, and unless c is finite and >= 0.
    """
    return expected_tokens(alpha, length) / (length * _ratio("c", c) + 1)


def best_length(alpha: float, c: float, longest: int = 64) -> int:
    """The length in 0..longest of the largest `speedup`, the shortest among equals.

    0 where nothing pays, which is alpha <= c (Corollary 3.9). Raises `ValueError` as `speedup`.
    """
    _refuse(alpha, longest)
    return max(range(longest + 1), key=lambda length: speedup(alpha, length, c))


def break_even(
    c: float,
    cost: Mapping[int, float],
    longest: int = 8,
    gain: float = 1.0,
    call: float = 0.0,
) -> float | None:
    """The least alpha at which drafting some length, up to `longest`, pays; None: none does.

    c = seconds of drafting a token / seconds of a target pass over one; `cost` maps tokens in a
    target pass to measured seconds, see `pass_seconds`; `gain` times as fast as plain decoding it
    has to be; `call`, as c, is what a draft takes besides, whatever its length. Raises `ValueError`
    as `pass_seconds` does.
    """
    passes = [pass_seconds(cost, n + 1) / pass_seconds(cost, 1) for n in range(longest + 1)]
    once, each = _ratio("call", call), _ratio("c", c)
    steps = [once + length * each + passes[length] for length in range(1, longest + 1)]

    def pays(alpha: float) -> bool:
        return any(
            expected_tokens(alpha, length) > gain * taken
            for length, taken in enumerate(steps, start=1)
        )

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


class Counts(Protocol):
    """What `acceptance` reads of the counts of a request; `request.Stats` has it."""

    @property
    def drafting_steps(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def accepted_per_position(self) -> Sequence[int]: ...
    @property
    def offered_per_position(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Acceptance:
    """How much of what was drafted was accepted, by depth; index 0 is the first drafted token.

    In a tree a depth is accepted if any of the siblings that the walk met there was.
    """

    conditional: tuple[float, ...]  # accepted / offered, given that the walk came so far
    cumulative: tuple[float, ...]  # accepted / steps that drafted: vLLM's rate per position
    alpha: float  # sum of accepted / sum of offered; 0 if nothing was drafted
    length: float  # acceptance length, 1 + accepted / steps that drafted (vLLM's definition)


def acceptance(requests: Iterable[Counts]) -> Acceptance:
    """The pooled counts of several requests.

    `alpha` is the maximum-likelihood estimate of an acceptance that is the same everywhere. Where
    acceptance grows along a run, because some runs are easy as a whole, this alpha promises more
    tokens than were written; where it falls, fewer. Leviathan's alpha, the mean over positions
    of the text, errs the other way: easy runs yield more than it promises.
    """
    accepted: list[int] = []
    offered: list[int] = []
    steps = total = 0
    for counts in requests:
        steps += counts.drafting_steps
        total += counts.accepted
        _add(accepted, counts.accepted_per_position)
        _add(offered, counts.offered_per_position)
    accepted += [0] * (len(offered) - len(accepted))
    return Acceptance(
        conditional=tuple(_share(a, o) for a, o in zip(accepted, offered, strict=True)),
        cumulative=tuple(_share(a, steps) for a in accepted),
        alpha=_share(sum(accepted), sum(offered)),
        length=1 + _share(total, steps),
    )


def pass_seconds(cost: Mapping[int, float], tokens: int) -> float:
    """Seconds of a pass over `tokens`, from measured ones: `cost` maps tokens to seconds.

    Linear between measured points and on along the last slope, a falling one taken for flat:
    it is noise, and would end below zero. Raises `ValueError` unless tokens >= 1, a pass over one
    token was measured, and all numbers are positive.
    """
    if 1 not in cost or min(cost) < 1 or not all(0 < s < math.inf for s in cost.values()):
        raise ValueError("cost must map token counts, 1 among them, to positive seconds")
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}, but must be >= 1: a pass runs a token")
    if tokens in cost:
        return cost[tokens]
    points = sorted(cost)
    if tokens > points[-1]:
        if len(points) == 1:
            return cost[1]
        low, high = points[-2:]
        return cost[high] + max(0.0, _slope(cost, low, high)) * (tokens - high)
    high = next(point for point in points if point > tokens)
    low = points[points.index(high) - 1]
    return cost[low] + _slope(cost, low, high) * (tokens - low)


@dataclass(frozen=True)
class Prediction:
    """What the formulae expect of speculation, in units of a target pass over one token."""

    alpha: float
    length: int  # tokens drafted one after another: the depth of the tree
    nodes: int  # tokens in a verification pass, node 0 included
    tokens_per_step: float  # eq. 1
    draft_cost: float  # per step, length x c
    pass_cost: float  # of a verification pass, cost(nodes) / cost(1); 1 where nothing was measured
    free: float  # speed-up if verifying many tokens cost what one costs (Theorem 3.8)
    speedup: float  # speed-up at the measured cost of verification
    once: float = 0.0  # plain steps that a token of a text takes besides all steps: its prompt's


def predict(
    alpha: float,
    length: int,
    c: float,
    cost: Mapping[int, float] | None = None,
    nodes: int | None = None,
) -> Prediction:
    """What to expect of drafts `length` deep in trees of `nodes` tokens (default: a chain).

    alpha: the same at every depth, such as `acceptance(...).alpha`; `from_records` takes all that
    `acceptance` gives, depth by depth.

    c = seconds of drafting per drafted depth / seconds of a target pass over one token; `cost`
    maps tokens in a target pass to measured seconds, see `pass_seconds`. Raises `ValueError` as
    `speedup` and `pass_seconds` do, and where a tree of `nodes` cannot be `length` deep.
    """
    free = speedup(alpha, length, c)
    nodes = length + 1 if nodes is None else nodes
    if nodes < length + 1:
        raise ValueError(f"nodes is {nodes}, but a tree of depth {length} has {length + 1} or more")
    tokens, draft_cost = expected_tokens(alpha, length), length * c
    pass_cost = 1.0 if cost is None else pass_seconds(cost, nodes) / pass_seconds(cost, 1)
    return Prediction(
        alpha, length, nodes, tokens, draft_cost, pass_cost, free, tokens / (pass_cost + draft_cost)
    )


def from_records(
    acceptance: Acceptance,
    drafting: float,
    nodes: float,
    draft_seconds: float,
    cost: Mapping[int, float],
    *,
    batch: int = 1,
    own: float = 0.0,
    once: float = 0.0,
) -> Prediction:
    """What to expect where acceptance was recorded by depth: nothing is assumed independent.

    drafting: share of the steps of a text that drafted. nodes: of their trees, node 0 included.
    draft_seconds: of drafting, in a step of the batch. own: seconds of the engine in a step, beside
    its pass and its drafts. once: seconds beside all steps, as of reading prompts, for each token
    that a text gets: no draft saves any of them. A step runs `batch` texts in one pass; `alpha` and
    `free` are those of one mean acceptance. Raises `ValueError` as `pass_seconds` does, and unless
    drafting is in [0, 1], nodes >= 1, batch >= 1, and all seconds are finite and >= 0.
    """
    if not 0 <= drafting <= 1 or not 1 <= nodes < math.inf or batch < 1:
        raise ValueError("drafting must be in [0, 1], nodes and batch 1 or more")
    plain = pass_seconds(cost, batch) + _ratio("own", own)
    wide = 0.0
    for many in range(batch + 1):  # texts that draft in a step, each for itself
        chance = math.comb(batch, many) * drafting**many * (1 - drafting) ** (batch - many)
        rows = batch + many * (nodes - 1)
        low, part = math.floor(rows), rows - math.floor(rows)
        wide += chance * (pass_seconds(cost, low) * (1 - part) + pass_seconds(cost, low + 1) * part)
    tokens = 1 + drafting * math.fsum(acceptance.cumulative)
    draft_cost = _ratio("draft_seconds", draft_seconds) / plain
    pass_cost, beside = (wide + own) / plain, _ratio("once", once) / plain
    return Prediction(
        alpha=acceptance.alpha,
        length=len(acceptance.conditional),
        nodes=max(1, round(nodes)),
        tokens_per_step=tokens,
        draft_cost=draft_cost,
        pass_cost=pass_cost,
        free=tokens / (1 + draft_cost),
        speedup=(1 + beside) / (beside + (pass_cost + draft_cost) / tokens),
        once=beside,
    )


def explain(prediction: Prediction, tokens_per_step: float, speedup: float) -> str:
    """Two sentences: where the measured tokens per step and speed-up part from the prediction.

    `speedup` is over plain decoding by the same engine, so that it tells with tokens_per_step what
    a step took in units of a plain one. Raises `ValueError` unless both are positive and finite.
    """
    for name, value in (("tokens_per_step", tokens_per_step), ("speedup", speedup)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, but must be positive and finite")
    expected, alpha = prediction.tokens_per_step, prediction.alpha
    first = f"A step wrote {tokens_per_step:.2f} tokens where {expected:.2f} were expected"
    if abs(tokens_per_step / expected - 1) > NOTICED:
        first += ", because acceptances inside a run are correlated"
        first += f", of which one mean alpha ({alpha:.2f}) says nothing"
        if tokens_per_step < expected:
            first += f", or because not every step drafted {prediction.length} tokens"
    once = prediction.once
    took = tokens_per_step * ((1 + once) / speedup - once)
    verify = prediction.pass_cost - 1
    rest = took - prediction.pass_cost - prediction.draft_cost
    second = (
        f"It took {took:.2f} plain steps: 1 for a pass over one token, {verify:+.2f} because it "
        f"verifies {prediction.nodes}, {prediction.draft_cost:+.2f} for drafting, and {rest:+.2f} "
        + ("of the engine's own time" if rest >= 0 else "where less was drafted than assumed")
    )
    return f"{first}. {second}."


def _refuse(alpha: float | Acceptance, length: int) -> None:
    if isinstance(alpha, Acceptance):
        raise ValueError("alpha is an Acceptance: give its .alpha, or the whole to from_records")
    if not 0 <= alpha <= 1:  # nan too
        raise ValueError(f"alpha is {alpha}, but must be in [0, 1]: it is a probability")
    if length < 0:
        raise ValueError(f"length is {length}, but must be >= 0")


def _ratio(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}, but must be finite and >= 0: it is a ratio of costs")
    return value


def _slope(cost: Mapping[int, float], low: int, high: int) -> float:
    return (cost[high] - cost[low]) / (high - low)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _add(sums: list[int], counts: Sequence[int]) -> None:
    sums += [0] * (len(counts) - len(sums))
    for i, count in enumerate(counts):
        sums[i] += count
