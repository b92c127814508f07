"""What a step takes on this machine: passes, the engine's own part, and asking each source.

Measured once, in some `SECONDS` in all; everything else is reckoned from it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof import rules
from draftproof.drafting.adopting import adopt
from draftproof.llm import LLM
from draftproof.models import beside
from draftproof.profiles import Part
from draftproof.runners import costs
from draftproof.runners.base import EncoderInput, Load, Target
from draftproof.runners.costs import PassCosts
from draftproof.runners.measuring import measure
from draftproof.sampling import SamplingParams
from draftproof.tuning.records import Text
from draftproof.tuning.replay import Drafting, Machine
from draftproof.tuning.sources import Source
from draftproof.writing import Writing

SECONDS = 3.0  # of measuring
ASKED, LOW, HIGH = 6, 1, 5  # positions at which a draft model is timed, and lengths of its drafts
STEPS = 16  # plain ones that are timed
KEY = -3  # of texts that are timed


@dataclass
class Loaded:
    """Draft models, loaded once each and shared by all that draft with them."""

    runners: dict[tuple[str, str | None], Target] = field(default_factory=dict)

    def __call__(self, target: Target, model: object, quantize: str | None = None) -> Target:
        """A runner of its own over the same weights."""
        key = str(model), quantize
        if key not in self.runners:
            self.runners[key] = beside(target, model, quantize)
        again = getattr(self.runners[key], "again")  # noqa: B009  a name that only ours have
        made: Target = again(
            max_batch=getattr(target, "max_batch", 8), max_length=None, prefix_cache=False
        )
        made.pass_costs = costs.of(self.runners[key])  # type: ignore[attr-defined]
        return made


def of_machine(
    llm: LLM, texts: Sequence[Text], sources: Sequence[Source], load: Loaded, wide: int
) -> Machine:
    """What steps take here, in batches of up to `wide` texts. llm: drafts with nothing."""
    models = [source for source in sources if source.method == "draft"]
    share = SECONDS / (2 + len(models))
    passes = costs.of(llm.runner)
    measure(llm.runner, passes, share)
    own = _own(llm, texts, wide)
    drafting = {source.name: _asked(source, texts) for source in sources if source not in models}
    for source in models:
        drafting[source.name] = _grown(llm.runner, source, texts[0], load, share)
    return Machine(passes, own, drafting)


def _own(llm: LLM, texts: Sequence[Text], wide: int) -> tuple[float, float]:
    """Seconds of the engine itself, in a step and for each text in it."""
    one, many = _step(llm, texts[:1]), 0.0
    count = min(wide, len(texts))
    if count > 1:
        many = (_step(llm, texts[:count]) - one) / (count - 1)
    each = min(max(0.0, many), one)
    return one - each, each


def _step(llm: LLM, texts: Sequence[Text]) -> float:
    """Median seconds of a plain step beside its pass."""
    params = SamplingParams(temperature=texts[0].temperature, max_tokens=STEPS, ignore_eos=True)
    requests = [made for text in texts for made in llm.prepare(text.asked[-STEPS:], params)]
    for request in requests:
        llm.engine.add(request)
    took: list[float] = []
    while not all(request.finished for request in requests):
        began = time.perf_counter()
        llm.engine.step()
        seconds, rows = llm.engine.drafts.cost
        if rows == len(texts):
            took.append(time.perf_counter() - began - seconds)
    return max(0.0, statistics.median(took)) if took else 0.0


def _asked(source: Source, texts: Sequence[Text]) -> Drafting:
    """As it was measured while the texts were recorded."""
    seconds = statistics.median(text.seconds[source.name] for text in texts)
    if not source.grows:
        return Drafting(seconds)
    levels = max(1, dict(source.part.options)["num_draft_tokens"])
    return Drafting(0.0, seconds / levels)


@torch.inference_mode()
def _grown(target: Target, source: Source, text: Text, load: Loaded, seconds: float) -> Drafting:
    """Of a draft model: drafts of two lengths, each behind what is written after another one."""
    known: PassCosts | None = None
    took: dict[int, list[float]] = {LOW: [], HIGH: []}
    for length in took:
        part: Part = source.grown(num_draft_tokens=length, min_confidence=0.0)
        drafter = adopt(part.proposer())
        loaded: Load = load
        drafter.bind(target, loaded)
        runner: Target = getattr(drafter, "beside").runner  # noqa: B009
        if known is None:
            known = costs.of(runner)
            measure(runner, known, seconds / 2)
        writing = Writing(
            KEY,
            text.prompt,
            SamplingParams(temperature=text.temperature, max_tokens=text.longest + HIGH + 2),
            seed=text.seed,
            rule=rules.named("coupled"),
            encoder_input=None if text.reads is None else EncoderInput(text.reads),
        )
        for at in range(0, min(len(text), 2 * (ASKED + 1)), 2):
            writing.tokens = [*text.prompt, *text.output[:at]]
            writing.history.append(text.output[max(0, at - 2) : at])
            began = time.perf_counter()
            drafter.propose([writing])
            if at:  # the first one reads the prompt
                took[length].append(time.perf_counter() - began)
        drafter.release(writing)
        drafter.close()
    assert known is not None
    if not took[LOW] or not took[HIGH]:
        return Drafting(0.0, known.one, known)
    low, high = statistics.median(took[LOW]), statistics.median(took[HIGH])
    level = max(0.0, high - low) / (HIGH - LOW)
    return Drafting(max(0.0, low - level), level, known)
