"""Whether speculation changes a token: every position against plain decoding of the same history.

A difference of logits beyond what rounding explains is a defect even where no token changed; a
token that changed is a near-tie only if its own logits, put through the same sampling chain, give
it. After a token that differs the comparison goes on from the plain run's history, so that nothing
hides behind the first one. Knows no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from draftproof.certify.plain import Bound, Reference, complaints, difference, write
from draftproof.counts import Stats
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.sampling import History, NoCandidate, pick

ENOUGH = 20  # defects of one run, after which the rest is not looked for
OTHER_LOGITS = "the logits that verified the token are not those of plain decoding"


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


def examine(llm: LLM, refs: Sequence[Reference], bound: Bound) -> Outcome:
    """The method of `llm` on all prompts in one batch; alone where there is one."""
    outcome = Outcome()
    pending = [(ref, 0) for ref in refs]
    served = None
    while pending:
        work = [(ref.prompt, ref.params, ref.tokens[:start]) for ref, start in pending]
        requests = write(llm, work, examined=True, divide=outcome.divide)
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

    for cause in complaints(request, ref.told):
        defect(cause)
    history = ref.history(request.stop_ids)
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
        own = pick(row, ref.params, history, (), request.noise, len(ref.begin) + at)
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
