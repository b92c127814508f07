"""How many engines there ought to be: a policy of Ray Serve's autoscaling, on plain numbers.

Serve keeps the bounds and the delays of its `AutoscalingConfig`, and pickles this module by value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class ByQueuedTokens:
    """As many as the texts that run fill, and one more for each `tokens` that wait.

    tokens: to be read and written, of texts without a place.
    """

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """context: Serve's `AutoscalingContext`; its metrics are `Engine.load` of each replica."""
        told: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}

        def total(name: str) -> float:
            return sum(told.get(name, {}).values())

        places = total("places")
        if not places:  # nobody has told anything yet
            return context.target_num_replicas, {}
        queued, waiting = total("queued_tokens"), total("waiting")
        outside = float(context.total_queued_requests or 0)  # at the fronts: engines take no more
        queued += outside * (queued / waiting if waiting else self.tokens)
        each = places / len(told["places"])
        full = math.ceil(round(total("running") / each, 6))
        return max(1, full + int(queued // self.tokens)), {}
