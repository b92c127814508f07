"""What the formulae of `analysis` expect of a measured side, from what a pass was measured to cost.

Knows the results of a comparison; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftproof import analysis
from draftproof.bench.compare import Comparison, stats_of


def predict(comparison: Comparison, cost: Mapping[int, float]) -> None:
    """Fills in acceptance and prediction of every side that drafted; `cost`: tokens -> seconds."""
    for side in comparison.sides:
        result, drafted = comparison.results.get(side.name), side.drafted
        if result is None or not result.tokens_per_s or drafted is None or not drafted.depth:
            continue
        result.acceptance = analysis.acceptance(stats_of(result))
        per_depth = drafted.seconds / drafted.depth
        result.draft_ms = 1e3 * per_depth
        if comparison.batch == 1 and result.of_plain is not None:
            length = round(drafted.depth / drafted.trees)
            result.predicted = analysis.predict(
                result.acceptance.alpha,
                length,
                per_depth / cost[1],
                cost,
                max(length + 1, round(drafted.nodes / drafted.trees)),
            )
            result.why = analysis.explain(
                result.predicted, result.tokens_per_step or 1.0, result.of_plain.median
            )
