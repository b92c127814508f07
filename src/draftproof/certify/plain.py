"""What plain decoding wrote and by which rows, and how far other passes may be off by rounding.

Everything else in a certificate is compared with it. Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.runners.base import KEY, EncoderInput, Work
from draftproof.sampling import History, SamplingParams
from draftproof.tree import TokenTree

Rule = Callable[[Tensor, Tensor], Tensor]
BLOCK = 8  # tokens of a block in the calibration, about a verification pass
SLACK = 4  # a block and a plain pass may each be off by twice what was seen in a sample
CAP = 16  # times eps(dtype) max |logit|: more is no rounding, unless the model itself has more


@dataclass(frozen=True)
class Reference:
    """What plain decoding wrote, and the row (V,) that each token was picked from."""

    number: int  # of the prompt
    prompt: list[int]
    params: SamplingParams
    tokens: list[int]
    reason: str | None
    rows: list[Tensor]
    start: list[int] | None = None  # what the decoder goes on from, where an encoder reads a prompt
    read: EncoderInput | None = None  # and that prompt
    process: Rule | None = None  # a rule of the model's own on every row
    told: Sequence[str] = ()  # warnings that a request has before it runs

    @property
    def begin(self) -> list[int]:
        """Tokens that the output goes on from."""
        return self.prompt if self.start is None else self.start

    def history(self, stop_ids: Collection[int] = ()) -> History:
        """As a request for it begins with."""
        made = History(self.begin, sorted(stop_ids))
        made.process = self.process
        return made


@dataclass(frozen=True)
class Bound:
    """How far logits may be off: nothing at all where the runner is batch-invariant."""

    value: float
    blocks: float  # largest difference of passes over blocks from passes over single tokens
    rounding: float | None  # largest difference of the plain rows from a wider precision's
    cap: float
    own: float | None = None  # as `rounding`, of the model's own pass, without the engine


def references(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    done: Callable[[], None],
) -> list[Reference]:
    """Plain decoding, one prompt after another. Raises `ValueError` where nothing can be picked."""
    refs = []
    for number, (ids, each) in enumerate(zip(prompts, params, strict=True)):
        (request,) = llm.prepare(ids, each)
        request.kept_logits = []
        rule, told = request.history.process, [*request.warnings]  # before it runs
        for _ in llm.engine.run([request]):
            pass
        if request.finish_reason == "error":
            raise ValueError(f"plain decoding fails on prompt {number}: {request.error}")
        refs.append(
            Reference(
                number,
                ids,
                each,
                request.output,
                request.finish_reason,
                request.kept_logits or [],
                request.prompt,
                request.encoder_input,
                rule,
                told,
            )
        )
        done()
    return refs


def calibrate(llm: LLM, refs: Sequence[Reference], twin: Any = None) -> Bound:
    """The bound for this model on this machine.

    Plain rows against passes over blocks with a fresh cache, and against `twin`, a transformers
    model with the same weights in another precision, if there is one. What the model itself makes
    of the two precisions, with nothing of the engine in it, is rounding however large it is; of all
    else no more counts than `CAP` allows, so that a defect in plain rows bounds nothing.
    """
    runner, blocks, rounding, own = llm.runner, 0.0, None, None
    largest = max(float(row[row.isfinite()].abs().max()) for ref in refs for row in ref.rows)
    eps = torch.finfo(refs[0].rows[0].dtype).eps
    for ref in refs:
        ids = [*ref.begin, *ref.tokens[:-1]]
        at = len(ref.begin) - 1
        for begin in range(at, len(ids), BLOCK):
            block = ids[begin : begin + BLOCK]
            new = ids[runner.cached(KEY) : begin]
            (output,) = runner.forward(
                [Work(KEY, new, TokenTree.chain(block), encoder_input=ref.read)]
            )
            for i, row in enumerate(output.logits):
                blocks = max(blocks, difference(row, ref.rows[begin - at + i]))
            runner.keep(KEY, range(len(block)))
        runner.free(KEY)
        if twin is not None:
            exact, itself = (_rows(model, ref, ids, at) for model in (twin, runner.model))
            narrower = max(1.0, torch.finfo(twin.dtype).eps / eps)  # a twin's errors in ours
            apart = _apart(itself, exact) / narrower
            own = max(own or 0.0, apart)
            off = apart if narrower > 1 else _apart(ref.rows, exact)
            rounding = max(rounding or 0.0, off)
    if runner.batch_invariant:
        return Bound(0.0, blocks, rounding, 0.0)
    cap, slack = CAP * eps * largest, SLACK
    if own is not None and SLACK * own > cap:  # wild weights: how much they make of it varies
        cap, slack = CAP * own, CAP
    return Bound(min(cap, slack * max(blocks, rounding or 0.0)), blocks, rounding, cap, own)


def _rows(model: Any, ref: Reference, ids: list[int], at: int) -> Tensor:
    """Logits (N, V) of a transformers model's own pass over a text, from place `at` on."""
    text = torch.tensor([ids], device=model.device)
    given = {"input_ids": text}
    if ref.read is not None:
        read = torch.tensor([[*ref.read.tokens]], device=model.device)
        given = {"input_ids": read, "decoder_input_ids": text}
    with torch.inference_mode():
        rows: Tensor = model(**given, use_cache=False).logits[0, at:]
    return rows


def _apart(rows: Sequence[Tensor] | Tensor, others: Tensor) -> float:
    return max(difference(row, other) for row, other in zip(rows, others, strict=True))


def difference(row: Tensor, other: Tensor) -> float:
    """The largest difference of two rows (V,); infinite where one of them is not a number."""
    off = torch.where(row == other, 0.0, (row.double() - other.double()).abs()).max()
    return float(off.nan_to_num(nan=float("inf"), posinf=float("inf")))


def write(
    llm: LLM,
    work: Sequence[tuple[list[int], SamplingParams, list[int]]],
    examined: bool,
    divide: Callable[[int, int], object] | None = None,
) -> list[Request]:
    """Requests that go on from what is written already, run to their ends in one batch.

    divide: is told what each step drafted, and for how many.
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
        if divide is not None:
            divide(drafted - before, asked)
        before, asked = drafted, _asked(requests)
    return requests


def _asked(requests: Sequence[Request]) -> int:
    """How many will have use for drafts in the next step."""
    return sum(not (one.finished or one.plain) and one.room > 1 for one in requests)


def complaints(request: Request, told: Sequence[str]) -> list[str]:
    """Why it was not written as it should: a drafter that failed, nothing to pick from.

    told: what every request for it is warned of.
    """
    said = [warning for warning in request.warnings if warning not in told]
    return [*said, *([request.error] if request.error is not None else [])]
