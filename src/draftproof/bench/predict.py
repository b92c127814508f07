"""What `analysis` expects of a measured side, from what its passes and drafts cost.

Knows the results of a comparison; measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from draftproof import analysis
from draftproof.bench.compare import Comparison, stats_of


def predict(comparison: Comparison, cost: Mapping[int, float]) -> None:
    """Fills in acceptance and prediction of every side that drafted; `cost`: tokens -> seconds.

    What the engine takes beside a pass is what plain decoding took beside it.
    """
    finished = comparison.finished()
    if not finished:
        return
    plain, batch = finished[0], comparison.batch
    side_by_side = min(batch, len(comparison.prompts))
    step = side_by_side / statistics.median(plain.tokens_per_s)
    own = max(0.0, step - analysis.pass_seconds(cost, side_by_side))
    for side in comparison.sides:
        result, drafted = comparison.results.get(side.name), side.drafted
        if result is None or not result.tokens_per_s or drafted is None or not drafted.depth:
            continue
        counts = stats_of(result)
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
            )
            result.why = analysis.explain(
                result.predicted, result.tokens_per_step or 1.0, result.of_plain.median
            )
