"""What `analysis` expects of a measured side, from what its passes and drafts cost.

Knows the results of a comparison; measures nothing.
"""

from __future__ import annotations

import statistics

from draftproof import analysis
from draftproof.bench.compare import Comparison, Result, stats_of
from draftproof.bench.sides import Side
from draftproof.runners.costs import PassCosts

ENOUGH = 5  # passes over so many rows, to know what one takes


def predict(comparison: Comparison, costs: PassCosts) -> None:
    """Fills in acceptance and prediction of every side that drafted.

    A pass takes what such passes took while the side wrote: one that is measured among others may
    take a third more or less. What the engine takes beside a pass, and for a prompt, is what plain
    decoding took. costs: of the target's passes, where none was made.
    """
    finished = comparison.finished()
    if not finished:
        return
    plain, batch = finished[0], comparison.batch
    side_by_side = min(batch, len(comparison.prompts))
    step, once = _plainly(plain, side_by_side)
    plainly = _passes(comparison.sides[0]) or {side_by_side: costs.seconds(side_by_side)}
    own = max(0.0, step - analysis.pass_seconds({1: costs.one, **plainly}, side_by_side))
    for side in comparison.sides:
        result, drafted = comparison.results.get(side.name), side.drafted
        if result is None or not result.tokens_per_s or drafted is None or not drafted.depth:
            continue
        counts, cost = stats_of(result), {1: costs.one, **_passes(side), **plainly}
        result.acceptance = analysis.acceptance(counts)
        result.draft_ms = 1e3 * drafted.seconds / drafted.depth
        steps = sum(each.steps for each in counts)
        if result.of_plain is not None and steps:
            drafting = sum(each.drafting_steps for each in counts)
            nodes = sum(each.drafted for each in counts)
            rounds = len(result.tokens_per_s)
            result.predicted = analysis.from_records(
                result.acceptance,
                drafting / steps,
                1 + nodes / max(1, drafting),
                drafted.seconds / rounds / steps * side_by_side,
                cost,
                batch=side_by_side,
                own=own,
                once=once,
            )
            result.why = analysis.explain(
                result.predicted, result.tokens_per_step or 1.0, result.of_plain.median
            )


def _passes(side: Side) -> dict[int, float]:
    """Seconds of the target's passes for a side, by rows."""
    passes = side.drafted.passes if side.drafted is not None else {}
    return {rows: statistics.median(took) for rows, took in passes.items() if len(took) >= ENOUGH}


def _plainly(plain: Result, batch: int) -> tuple[float, float]:
    """Seconds of a step of plain decoding, and beside its steps for each token of a text."""
    whole = batch / statistics.median(plain.tokens_per_s)
    counts = stats_of(plain)
    tokens = statistics.fmean(each.tokens for each in counts)
    if tokens < 2:
        return whole, 0.0
    first = statistics.fmean(each.first_token - each.began for each in counts)
    step = max(0.0, tokens * whole - first) / (tokens - 1)
    return step, max(0.0, first - step) / tokens
