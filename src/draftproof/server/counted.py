"""What an answer took, in the shapes that clients read: usage, acceptance, llama.cpp's timings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from draftproof.counts import Stats
from draftproof.request import Request
from draftproof.sampling import PREDICTION


def usage(requests: Sequence[Request], silent: bool = False) -> dict[str, Any]:
    """Of all choices of an answer; each prompt counts once. silent: what was written does not.

    Of a call with a prediction the drafted tokens are those of the prediction, else all.
    `limited_by` is there where a text had to end because there was no memory for more of it.
    """
    prompts = [request for request in requests if request.index == 0]
    read = sum(each.read for each in prompts)
    wrote = 0 if silent else sum(each.resumed + each.stats.tokens for each in requests)
    counts = [_drafted(request) for request in requests]
    accepted, drafted = sum(right for right, _ in counts), sum(all for _, all in counts)
    starved = any(each.starved and each.finish_reason == "length" for each in requests)
    return {
        "prompt_tokens": read,
        "completion_tokens": wrote,
        "total_tokens": read + wrote,
        "prompt_tokens_details": {"cached_tokens": sum(each.stats.cached for each in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        **({"limited_by": "memory"} if starved else {}),
    }


def _drafted(request: Request) -> tuple[int, int]:
    """Tokens that were drafted and accepted, and those that were drafted."""
    stats = request.stats
    if request.params.prediction is None:
        return stats.accepted, stats.drafted
    share = stats.decisions.sources.get(PREDICTION)
    return (share.accepted, share.used) if share is not None else (0, 0)


def acceptance(requests: Sequence[Request]) -> dict[str, Any]:
    """vLLM's `metrics.speculative_decoding`, over all choices. A step: one that drafted."""
    steps = [step for request in requests for step in request.stats.by_step if step[0]]
    drafted, accepted = sum(nodes for nodes, _ in steps), sum(right for _, right in steps)
    longest = max((right for _, right in steps), default=0)
    most = max((nodes for nodes, _ in steps), default=0)
    by_length: dict[int, Counter[int]] = {}
    for nodes, right in steps:
        by_length.setdefault(nodes, Counter())[right] += 1
    counts = Counter(right for _, right in steps)
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": [counts[right] for right in range(longest + 1)],
        "acceptance_histogram_by_draft_length": {
            str(nodes): [by_length[nodes][right] for right in range(max(by_length[nodes]) + 1)]
            for nodes in sorted(by_length)
        },
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": len(steps),
        "num_spec_tokens": most,
    }


def timings(request: Request, now: float) -> dict[str, Any]:
    """llama.cpp's, of one choice; of one that is still written, up to `now` (monotonic seconds)."""
    stats = request.stats
    read, wrote = request.read - stats.cached, stats.tokens
    end = stats.ended or now
    prompt_ms = 1000 * max((stats.first_token or end) - (stats.placed or stats.began), 0.0)
    wrote_ms = 1000 * (end - stats.first_token) if stats.first_token else 0.0
    return {
        "cache_n": stats.cached,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / read if read else 0.0,
        "prompt_per_second": 1000 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": wrote,
        "predicted_ms": wrote_ms,
        "predicted_per_token_ms": wrote_ms / wrote if wrote else 0.0,
        "predicted_per_second": 1000 * wrote / wrote_ms if wrote_ms else 0.0,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def details(request: Request, drafter: str) -> dict[str, Any]:
    """Where each token comes from, and what each step had; of this text alone.

    drafter: who drafted, where nothing chose among several. depth: 0 of what the model wrote
    itself, else the place in the draft.
    """
    drafted = request.from_draft
    names = request.stats.decisions.by_token
    depths = accumulate(drafted, lambda depth, right: depth + 1 if right else 0, initial=0)
    tokens = []
    for at, (right, depth) in enumerate(zip(drafted, list(depths)[1:], strict=True)):
        source = (names[at] if at < len(names) else "") or drafter
        own = "target" if at >= request.resumed else "resumed"
        tokens.append({"source": source if right else own, "depth": depth})
    return {
        "tokens": tokens,
        "steps": [{"nodes": nodes, "accepted": right} for nodes, right in request.stats.by_step],
    }


def line(stats: Stats) -> dict[str, Any]:
    """What an access log says of a text."""
    took = stats.ended - stats.began
    used = [name for name, share in stats.decisions.sources.items() if share.used]
    return {
        "tokens": stats.tokens,
        "first_ms": 1000 * (stats.first_token - stats.began) if stats.first_token else None,
        "per_second": stats.tokens / took if took > 0 else 0.0,
        "acceptance": stats.acceptance_length,
        "sources": used,
    }
