"""What a load took, in plain numbers: percentiles, rates, failures, what kept its limits."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.traffic.answers import Answer
from draftproof.traffic.levels import Level

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good answer keeps, in milliseconds; None: anything is good."""

    first_ms: float | None = None
    per_token_ms: float | None = None

    def kept_by(self, answer: Answer) -> bool:
        """Whether it came, and in time; one that has no such time keeps its limit."""
        pairs = (
            (answer.first_token_s, self.first_ms),
            (answer.per_token_s, self.per_token_ms),
        )
        return answer.fault is None and all(
            took is None or limit is None or 1000 * took <= limit for took, limit in pairs
        )


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Between the two nearest values, as numpy's; None of nothing."""
    if not values:
        return None
    cuts = statistics.quantiles(
        [*values] * (2 if len(values) == 1 else 1), n=100, method="inclusive"
    )
    return {f"p{p}": cuts[p - 1] for p in PERCENTILES}


def summary(level: Level, limits: Limits) -> dict[str, Any]:
    """Of a load; times in milliseconds, of the answers that came."""
    came = [answer for answer in level.answers if answer.fault is None]
    tokens, seconds = sum(answer.tokens for answer in came), level.seconds
    read = sum(answer.read for answer in came)
    good = sum(limits.kept_by(answer) for answer in level.answers)
    return {
        "level": level.name,
        "clients": level.clients,
        "rate": level.rate,
        "calls": len(level.answers),
        "failures": dict(Counter(each.fault for each in level.answers if each.fault is not None)),
        "seconds": seconds,
        "tokens": tokens,
        "prompt_tokens": read,
        "cached": sum(answer.cached for answer in came) / read if read else 0.0,
        "tokens_per_s": tokens / seconds if seconds else 0.0,
        "calls_per_s": len(came) / seconds if seconds else 0.0,
        "first_token_ms": _ms(answer.first_token_s for answer in came),
        "per_token_ms": _ms(answer.per_token_s for answer in came),
        "whole_ms": _ms(answer.whole_s for answer in came),
        "longest_gap_ms": _ms(answer.gap for answer in came),
        "late_ms": _ms(answer.sent - answer.due for answer in level.answers if answer.asked),
        "good": good / len(level.answers) if level.answers else 0.0,
        "good_per_s": good / seconds if seconds else 0.0,
        "client": {
            "processor_s": level.processor_s,
            "of_a_core": level.processor_s / seconds if seconds else 0.0,
            "us_per_token": 1e6 * level.processor_s / tokens if tokens else None,
        },
    }


def _ms(seconds: Iterable[float | None]) -> dict[str, float] | None:
    return percentiles([1000 * each for each in seconds if each is not None])


def as_dict(answer: Answer, began: float) -> dict[str, Any]:
    """An answer, fit for JSON; times in milliseconds, those of the clock from `began`."""
    per_token = answer.per_token_s
    return {
        "prompt": answer.question.prompt,
        "turn": answer.question.turn,
        "asked": answer.asked,
        "due_ms": 1000 * (answer.due - began),
        "sent_ms": 1000 * (answer.sent - began),
        "first_token_ms": None if answer.first is None else 1000 * (answer.first - answer.due),
        "per_token_ms": None if per_token is None else 1000 * per_token,
        "longest_gap_ms": None if answer.gap is None else 1000 * answer.gap,
        "whole_ms": 1000 * answer.whole_s,
        "usage": answer.usage,
        "finish_reason": answer.reason,
        "fault": answer.fault,
        "error": answer.error,
        "text": answer.text,
    }
