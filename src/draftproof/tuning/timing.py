"""What a step takes on this machine: passes, the engine's own part, and asking each source.

Measured once, in some `SECONDS` in all; everything else is reckoned from it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from draftproof import rules
from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter
from draftproof.llm import LLM
from draftproof.models import beside
from draftproof.profiles import Part
from draftproof.runners import costs
from draftproof.runners.base import EncoderInput, Load, Target
from draftproof.runners.costs import PassCosts
from draftproof.runners.measuring import measure
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.tuning.records import Text
from draftproof.tuning.replay import Drafting, Machine
from draftproof.tuning.sources import Source
from draftproof.writing import Writing

SECONDS = 3.0  # of measuring
ASKED, LOW, HIGH = 6, 1, 5  # positions at which a draft model is timed, and lengths of its drafts
STEPS = 16  # that are timed, at most
NODES = 6  # of each text, where steps with drafts are
CACHES = 64 << 20  # bytes, more than caches hold
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
    own = _own(llm, texts, wide, 0) or (0.0, 0.0)
    drafted = _own(llm, texts, wide, NODES) or own
    trees = drafted[0] - own[0], drafted[1] - own[1]
    drafting = {source.name: _asked(source, texts) for source in sources if source not in models}
    for source in models:
        drafting[source.name] = _grown(llm.runner, source, texts[0], load, share)
    return Machine(passes, own, drafting, trees)


class _Told(Drafter):
    """Drafts so many tokens of what is known to be written."""

    name = "told"

    def __init__(self, texts: Sequence[Text], nodes: int) -> None:
        self.outputs = {tuple(text.asked): text.output for text in texts}
        self.nodes = nodes

    def bind(self, target: Target, load: Load) -> None:
        pass

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        trees = []
        for request in requests:
            at = len(request.tokens) - len(request.prompt)
            known = self.outputs.get(tuple(request.before or request.prompt), [])
            more = known[at : at + max(0, min(self.nodes, request.room - 1))]
            trees.append(TokenTree.chain([request.tokens[-1], *more]))
        return trees


def _own(llm: LLM, texts: Sequence[Text], wide: int, nodes: int) -> tuple[float, float] | None:
    """Seconds of a step beyond the table's, and of each text in it, with so many nodes of each.

    None where texts are too short for such steps.
    """
    count = min(wide, len(texts))
    one, all_ = _step(llm, texts[:1], nodes), _step(llm, texts[:count], nodes)
    if one is None or all_ is None:
        return None
    many = (all_ - one) / max(1, count - 1)
    return one - many, many


def _step(llm: LLM, texts: Sequence[Text], nodes: int) -> float | None:
    """Median seconds of a step beyond what the table has for its pass; None: there was none."""
    longest = min(STEPS * (1 + nodes), *map(len, texts))
    params = SamplingParams(
        temperature=texts[0].temperature, max_tokens=longest, ignore_eos=True, seed=texts[0].seed
    )
    took: list[float] = []
    with LLM(llm, speculate=_Told(texts, nodes) if nodes else None, max_batch=len(texts)) as side:
        requests = [made for text in texts for made in side.prepare(text.asked, params)]
        for request in requests:
            side.engine.add(request)
        while not all(request.finished for request in requests):
            began = time.perf_counter()
            side.engine.step()
            _, rows = side.engine.drafts.cost
            if rows == len(texts) * (1 + nodes):
                took.append(time.perf_counter() - began - side.engine.drafts.foretold)
    return statistics.median(took) if took else None


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
    passed = np.zeros(CACHES, np.uint8)
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
            passed += 1  # as the target's pass before it, which leaves nothing of it in the caches
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
