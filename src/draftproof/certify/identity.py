"""Whether speculation changes a token: every position against plain decoding of the same history.

A difference of logits beyond what rounding explains is a defect even where no token changed; a
token that changed is a near-tie only if its own logits, put through the same sampling chain, give
it. After a token that differs the comparison goes on from the plain run's history, so that nothing
hides behind the first one. Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.counts import Stats
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.runners.base import KEY, Work
from draftproof.sampling import History, NoCandidate, SamplingParams, pick
from draftproof.tree import TokenTree

BLOCK = 8  # tokens of a block in the calibration, about a verification pass
SLACK = 4  # a block and a plain pass may each be off by twice what was seen in a sample
ENOUGH = 20  # defects of one run, after which the rest is not looked for
CAP = 16  # times eps(dtype) max |logit|: more than that is no rounding
OTHER_LOGITS = "the logits that verified the token are not those of plain decoding"


@dataclass(frozen=True)
class Reference:
    """What plain decoding wrote, and the row (V,) that each token was picked from."""

    number: int  # of the prompt
    prompt: list[int]
    params: SamplingParams
    tokens: list[int]
    reason: str | None
    rows: list[Tensor]


@dataclass(frozen=True)
class Bound:
    """How far logits may be off: nothing at all where the runner is batch-invariant."""

    value: float
    blocks: float  # largest difference of passes over blocks from passes over single tokens
    rounding: float | None  # largest difference of the plain rows from a wider precision's
    cap: float


@dataclass(frozen=True)
class Finding:
    """A position at which something was not as plain decoding has it."""

    near_tie: bool
    cause: str
    number: int  # of the prompt
    position: int  # in the output
    plain: int | None  # the tokens there; None after an end
    other: int | None
    difference: float  # of the logits


@dataclass
class Outcome:
    """What the comparison of one method under one setting found."""

    positions: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    alone: int = 0  # drafted for one prompt at a time
    together: int = 0  # drafted in steps that asked for several drafts
    difference: float = 0.0  # the largest
    near_ties: list[Finding] = field(default_factory=list)
    defects: list[Finding] = field(default_factory=list)

    def count(self, stats: Stats) -> None:
        """What one request took."""
        self.steps += stats.steps
        self.drafted += stats.drafted
        self.accepted += stats.accepted

    def divide(self, drafted: int, asked: int) -> None:
        """What a step drafted, in which so many requests had use for drafts."""
        if asked > 1:
            self.together += drafted
        else:
            self.alone += drafted

    def see(self, off: float) -> None:
        """One position, whose logits are so far off."""
        self.positions += 1
        self.difference = max(self.difference, off)

    def add(self, other: Outcome) -> None:
        self.positions += other.positions
        self.steps += other.steps
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.alone += other.alone
        self.together += other.together
        self.difference = max(self.difference, other.difference)
        self.near_ties += other.near_ties
        self.defects += other.defects


def references(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    done: Callable[[], None],
) -> list[Reference]:
    """Plain decoding, one prompt after another. Raises `ValueError` where nothing can be picked."""
    refs = []
    for number, (ids, each) in enumerate(zip(prompts, params, strict=True)):
        request = write(llm, [(ids, each, [])], examined=True)[0]
        if request.finish_reason == "error":
            raise ValueError(f"plain decoding fails on prompt {number}: {request.error}")
        refs.append(
            Reference(
                number, ids, each, request.output, request.finish_reason, request.kept_logits or []
            )
        )
        done()
    return refs


def calibrate(llm: LLM, refs: Sequence[Reference], wider: Any = None) -> Bound:
    """The bound for this model on this machine.

    Plain rows against passes over blocks with a fresh cache, and against `wider`, a transformers
    model with the same weights in a wider precision, if there is one.
    """
    runner, blocks, rounding = llm.runner, 0.0, None
    largest = max(float(row[row.isfinite()].abs().max()) for ref in refs for row in ref.rows)
    for ref in refs:
        ids = [*ref.prompt, *ref.tokens[:-1]]
        at = len(ref.prompt) - 1
        for begin in range(at, len(ids), BLOCK):
            block = ids[begin : begin + BLOCK]
            new = ids[runner.cached(KEY) : begin]
            (output,) = runner.forward([Work(KEY, new, TokenTree.chain(block))])
            for i, row in enumerate(output.logits):
                blocks = max(blocks, difference(row, ref.rows[begin - at + i]))
            runner.keep(KEY, range(len(block)))
        runner.free(KEY)
        if wider is not None:
            with torch.inference_mode():
                exact = wider(input_ids=torch.tensor([ids], device=wider.device)).logits[0, at:]
            off = [difference(row, wide) for row, wide in zip(ref.rows, exact, strict=True)]
            rounding = max(rounding or 0.0, *off)
    if runner.batch_invariant:
        return Bound(0.0, blocks, rounding, 0.0)
    cap = CAP * torch.finfo(refs[0].rows[0].dtype).eps * largest
    return Bound(min(cap, SLACK * max(blocks, rounding or 0.0)), blocks, rounding, cap)


def difference(row: Tensor, other: Tensor) -> float:
    """The largest difference of two rows (V,); infinite where one of them is not a number."""
    off = torch.where(row == other, 0.0, (row.double() - other.double()).abs()).max()
    return float(off.nan_to_num(nan=float("inf"), posinf=float("inf")))


def examine(llm: LLM, refs: Sequence[Reference], bound: Bound) -> Outcome:
    """The method of `llm` on all prompts in one batch; alone where there is one."""
    outcome = Outcome()
    pending = [(ref, 0) for ref in refs]
    served = None
    while pending:
        work = [(ref.prompt, ref.params, ref.tokens[:start]) for ref, start in pending]
        requests = write(llm, work, examined=True, outcome=outcome)
        if served is None and not refs[0].params.temperature:
            # What users get: nobody looks at logits, and greedy decoding may make none.
            served = write(llm, work, examined=False)
            _compare_served(pending, requests, served, outcome)
        compared = [
            (ref, _compare(ref, start, request, bound, outcome))
            for (ref, start), request in zip(pending, requests, strict=True)
        ]
        broken = len(outcome.defects) >= ENOUGH
        pending = [(ref, at) for ref, at in compared if at is not None and not broken]
    return outcome


def write(
    llm: LLM,
    work: Sequence[tuple[list[int], SamplingParams, list[int]]],
    examined: bool,
    outcome: Outcome | None = None,
) -> list[Request]:
    """Requests that go on from what is written already, run to their ends in one batch.

    outcome: is told of what was drafted alone and together.
    """
    requests = []
    for prompt, params, written in work:
        (request,) = llm.prepare(prompt, params)
        request.resume(written)
        request.kept_logits = [] if examined else None
        requests.append(request)
    before, asked = 0, _asked(requests)
    for _ in llm.engine.run(requests):
        drafted = sum(request.stats.drafted for request in requests)
        if outcome is not None:
            outcome.divide(drafted - before, asked)
        before, asked = drafted, _asked(requests)
    return requests


def _asked(requests: Sequence[Request]) -> int:
    """How many will have use for drafts in the next step."""
    return sum(not (one.finished or one.plain) and one.room > 1 for one in requests)


def complaints(request: Request) -> list[str]:
    """Why it was not written as it should: a drafter that failed, nothing to pick from."""
    return [*request.warnings, *([request.error] if request.error is not None else [])]


def _compare_served(
    pending: Sequence[tuple[Reference, int]],
    examined: Sequence[Request],
    served: Sequence[Request],
    outcome: Outcome,
) -> None:
    for (ref, _), one, two in zip(pending, examined, served, strict=True):
        if (one.output, one.finish_reason) == (two.output, two.finish_reason):
            continue
        same = [a == b for a, b in zip(one.output, two.output, strict=False)]
        at = same.index(False) if False in same else len(same)
        cause = "the same request written twice differs, with its logits kept and without"
        outcome.defects.append(_finding(False, cause, ref, at, two.output, float("nan")))


def _finding(
    near_tie: bool, cause: str, ref: Reference, at: int, other: Sequence[int], off: float
) -> Finding:
    plain, token = (tokens[at] if at < len(tokens) else None for tokens in (ref.tokens, other))
    return Finding(near_tie, cause, ref.number, at, plain, token, off)


def _compare(
    ref: Reference, start: int, request: Request, bound: Bound, outcome: Outcome
) -> int | None:
    """One run from `start` on; returns where to go on after a token that differs."""
    output = request.output
    outcome.count(request.stats)

    def defect(cause: str) -> None:
        outcome.defects.append(_finding(False, cause, ref, len(output), output, 0.0))

    for cause in complaints(request):
        defect(cause)
    history = History(ref.prompt, sorted(request.stop_ids))
    history.append(ref.tokens[:start])
    for at, row in enumerate(request.kept_logits or (), start):
        if at == len(ref.tokens):
            defect("it wrote on where plain decoding ended")
            return None
        _compare_row(ref, at, row, request, history, bound, outcome)
        if output[at] != ref.tokens[at]:
            return at + 1 if at + 1 < len(ref.tokens) else None
        history.append(ref.tokens[at : at + 1])
    if len(output) < len(ref.tokens):
        defect("it ended where plain decoding wrote on")
    elif request.finish_reason != ref.reason:
        defect(f"it ended with {request.finish_reason} and not with {ref.reason}")
    return None


def _compare_row(
    ref: Reference,
    at: int,
    row: Tensor,
    request: Request,
    history: History,
    bound: Bound,
    outcome: Outcome,
) -> None:
    """One position of equal history: its logits, and whether its token follows from them."""
    output, off = request.output, difference(row, ref.rows[at])
    outcome.see(off)
    try:
        own = pick(row, ref.params, history, (), request.noise, len(ref.prompt) + at)
    except NoCandidate:
        own = -1
    causes = []
    if not off <= bound.value:
        causes.append(OTHER_LOGITS)
    if own != output[at]:
        causes.append("the token does not follow from the logits that verified it")
    outcome.defects += [_finding(False, cause, ref, at, output, off) for cause in causes]
    if output[at] != ref.tokens[at] and not causes:
        cause = "rounding changed the order of two tokens"
        outcome.near_ties.append(_finding(True, cause, ref, at, output, off))
