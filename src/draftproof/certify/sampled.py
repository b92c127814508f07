"""Sampling under the rejection rule: every row that a token was drawn from, against plain decoding.

The tokens are others than plain decoding's by right. So plain decoding's passes run over what was
written, token by token, and their rows must be those that verified it; and every token must be
possible under its own row. Whether the draws follow the law is `law`'s question.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftproof.certify.identity import ENOUGH, OTHER_LOGITS, Finding, Outcome
from draftproof.certify.plain import Bound, Reference, complaints, difference, write
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.runners.base import KEY, EncoderInput, Work
from draftproof.sampling import History, NoCandidate, SamplingParams, law
from draftproof.tree import TokenTree


def examine(plain: LLM, llm: LLM, refs: Sequence[Reference], bound: Bound) -> Outcome:
    """The method of `llm` on all prompts in one batch, by the passes of `plain`."""
    outcome = Outcome()
    work = [(ref.prompt, ref.params, list[int]()) for ref in refs]
    requests = write(llm, work, examined=True, divide=outcome.divide)
    for ref, request in zip(refs, requests, strict=True):
        if len(outcome.defects) < ENOUGH:
            _compare(plain, ref, request, bound, outcome)
    return outcome


def replay(
    llm: LLM, prompt: Sequence[int], output: Sequence[int], read: EncoderInput | None = None
) -> list[Tensor]:
    """The rows (V,) of plain decoding's passes over what is written already, one per token.

    read: what an encoder reads for it.
    """
    runner, ids, rows = llm.runner, [*prompt, *output], list[Tensor]()
    last, budget = len(prompt) - 1, llm.engine.scheduler.prompt_budget
    while last - runner.cached(KEY) > budget:  # the engine reads long prompts in slices
        done = runner.cached(KEY)
        runner.forward([Work(KEY, ids[done : done + budget], None, encoder_input=read)])
    for at in range(last, len(ids) - 1):
        tree = TokenTree.chain(ids[at : at + 1])
        work = Work(KEY, ids[runner.cached(KEY) : at], tree, encoder_input=read)
        (result,) = runner.forward([work])
        rows.append(result.logits[0].clone())
        runner.keep(KEY, [0])
    runner.free(KEY)
    return rows


def _compare(plain: LLM, ref: Reference, request: Request, bound: Bound, outcome: Outcome) -> None:
    """One request of a prompt."""
    output, params = request.output, request.params
    outcome.count(request.stats)

    def defect(cause: str, at: int, off: float = 0.0) -> None:
        token = output[at] if at < len(output) else None
        outcome.defects.append(Finding(False, cause, ref.number, at, None, token, off))

    for cause in complaints(request, ref.told):
        defect(cause, len(output))
    history = ref.history(request.stop_ids)
    rows = replay(plain, request.prompt, output, request.encoder_input)
    for at, (row, other) in enumerate(zip(request.kept_logits or (), rows, strict=True)):
        off = difference(row, other)
        outcome.see(off)
        if not off <= bound.value:
            defect(OTHER_LOGITS, at, off)
        if not _possible(output[at], row, params, history):
            defect("the token is impossible under the logits that verified it", at, off)
        history.append(output[at : at + 1])
    stops = [token in request.stop_ids for token in output]
    if any(stops[:-1]):
        defect("it wrote on behind a token that ends it", stops.index(True))
    elif request.finish_reason == "length" and request.room > 0:
        defect("it ended where it had room left", len(output))
    elif request.finish_reason == "stop" and not any(stops):
        defect("it ended without a token that ends it", len(output))


def _possible(token: int, row: Tensor, params: SamplingParams, history: History) -> bool:
    try:
        return float(law(row, params, history, ())[token]) > 0
    except NoCandidate:
        return False
