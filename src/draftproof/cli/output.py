"""What `draftproof generate` prints: text as it comes, a table of counts, one JSON object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from draftproof import LLM, Completion
from draftproof.counts import Stats
from draftproof.request import Request
from draftproof.text import TextStream

WIDE = 76  # columns that a table of counts takes, at most


def write(llm: LLM, requests: Sequence[Request], quiet: bool) -> bool:
    """Run `requests` and print them unless `quiet`; one alone is printed while it is written.

    Returns whether an interrupt ended them; what they wrote until then is printed too.
    """
    interrupted = False
    try:
        for request in llm.engine.run(requests):
            if len(requests) == 1 and not quiet:
                _print_new(request)
    except KeyboardInterrupt:
        interrupted = True
    for request in () if quiet else requests:
        if len(requests) > 1:
            print(f"[{request.index}]")
        _print_new(request)
        if interrupted or not request.completion().text.endswith("\n"):
            print(flush=True)
    return interrupted


def _print_new(request: Request) -> None:
    assert isinstance(request.text, TextStream)  # a prompt of text: there is a tokenizer
    print(request.text.take(), end="", flush=True)


def _seconds(stats: Stats) -> tuple[float, float | None]:
    """From start to end, and to the first token if there is one."""
    return stats.ended - stats.began, stats.first_token - stats.began if stats.tokens else None


def table(done: Sequence[Completion], width: int = WIDE, read: int | None = None) -> Table:
    """The counts of completions: one row each, or under each other where `width` is too small.

    read: tokens of the prompt, where an encoder read some of them.
    """
    first, narrow = done[0], width < WIDE
    read = len(first.prompt_token_ids) if read is None else read
    shown = Table(
        box=None if narrow else box.SIMPLE_HEAD,
        show_header=not narrow,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"seed {first.seed}, {read} prompt tokens"
        + (", lossy acceptance: not what the model alone would write" if first.stats.lossy else ""),
        title_justify="left",
        title_style="dim",
    )
    rows = [_row(one, several=len(done) > 1) for one in done]
    if narrow:
        for row in rows:
            for name, value in row.items():
                shown.add_row(name.replace("/\n", "/").replace("\n", " "), value)
        return shown
    for name in rows[0]:
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(*row.values())
    return shown


def _row(one: Completion, several: bool) -> dict[str, str]:
    """What a completion took, by the name of the column."""
    stats = one.stats
    seconds, first_s = _seconds(stats)
    return ({"n": str(one.index)} if several else {}) | {
        "tokens": str(stats.tokens),
        "steps": str(stats.steps),
        "tokens/\nstep": f"{stats.tokens_per_step:.2f}",
        "acceptance\nrate": f"{stats.accepted / stats.drafted:.0%}" if stats.drafted else "-",
        "acceptance\nlength": f"{stats.acceptance_length:.2f}" if stats.drafted else "-",
        "tokens/s": f"{stats.tokens / seconds:.1f}" if stats.tokens else "-",
        "first\ntoken": "-" if first_s is None else f"{first_s:.2f} s",
        "end": one.finish_reason,
    }


def as_dict(model: str, prompt: str, done: Sequence[Completion]) -> dict[str, Any]:
    """Everything about the completions, fit for JSON."""
    return {
        "model": model,
        "prompt": prompt,
        "prompt_token_ids": done[0].prompt_token_ids,
        "prompt_logprobs": _finite(done[0].prompt_logprobs),
        "completions": [
            {
                "index": one.index,
                "text": one.text,
                "token_ids": one.token_ids,
                "from_draft": one.from_draft,
                "finish_reason": one.finish_reason,
                "error": one.error,
                "warnings": one.warnings,
                "seed": one.seed,
                "logprobs": _finite(one.logprobs),
                "stats": _counts(one.stats),
            }
            for one in done
        ],
    }


def _counts(stats: Stats) -> dict[str, Any]:
    counts = asdict(stats)
    for clock in ("began", "placed", "first_token", "ended"):  # monotonic: nothing outside
        del counts[clock]
    seconds, first_s = _seconds(stats)
    return counts | {
        "tokens_per_step": stats.tokens_per_step,
        "acceptance_length": stats.acceptance_length,
        "seconds": seconds,
        "first_token_s": first_s,
        "tokens_per_s": stats.tokens / seconds if stats.tokens else None,
    }


def _finite(
    logprobs: Sequence[dict[int, float] | None] | None,
) -> list[dict[int, float | None] | None] | None:
    """JSON has no -inf: a token that cannot occur gets null."""
    if logprobs is None:
        return None
    return [
        None if row is None else {i: p if math.isfinite(p) else None for i, p in row.items()}
        for row in logprobs
    ]


def decided(stats: Stats) -> str | None:
    """One line on what drafted an answer, and what that brought; None: nothing decided it."""
    decisions = stats.decisions
    if not decisions.seconds:
        return None
    parts = [
        f"{name} {share.accepted} of {share.used} drafted tokens accepted, {share.seconds:.2f} s"
        for name, share in decisions.sources.items()
        if share.used
    ]
    plain = sum(decisions.plain_steps.values())
    why = ", ".join(f"{reason} {steps}" for reason, steps in decisions.plain_steps.items())
    parts.append(f"{plain} of {stats.steps} steps plain" + (f" ({why})" if why else ""))
    gain = decisions.saved / decisions.plain_seconds if decisions.plain_seconds else 0.0
    parts.append(
        f"about {decisions.saved:.2f} s saved of {decisions.plain_seconds:.2f} ({gain:.0%})"
    )
    return "; ".join(parts)


def speed(stats: Stats) -> str:
    """One line on how fast an answer was written."""
    seconds, first_s = _seconds(stats)
    tokens = "1 token" if stats.tokens == 1 else f"{stats.tokens} tokens"
    parts = [tokens, f"{stats.tokens / seconds:.1f} tokens/s"]
    if first_s is not None:
        parts.append(f"first after {first_s:.2f} s")
    if stats.drafted:
        parts.append(f"{stats.tokens_per_step:.2f} tokens/step")
    return ", ".join(parts)
