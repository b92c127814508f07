"""What a step takes on this machine: passes, the engine's own part, and asking each source.

Measured once, in some `SECONDS` in all; everything else is reckoned from it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch

from draftproof import clock, interrupts, rules
from draftproof.drafting.adopting import adopt
from draftproof.drafting.base import Drafter
from draftproof.drafting.reading import SLICE
from draftproof.llm import LLM
from draftproof.models import beside
from draftproof.runners import costs
from draftproof.runners.base import EncoderInput, Load, Target
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import attended
from draftproof.runners.measuring import measure
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.tuning.decided import Settled
from draftproof.tuning.machine import Drafting, Machine
from draftproof.tuning.records import Text
from draftproof.tuning.sources import Source
from draftproof.writing import Writing

SECONDS = 3.0  # of measuring
ASKED, LOW, HIGH = 6, 1, 5  # positions at which a draft model is timed, and lengths of its drafts
STEPS, LEAST = 20, 6  # that are timed, at most; at least, where texts are short
TOGETHER = 5  # of them, before others have their turn
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
            with interrupts.kept():
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
    measure(llm.runner, costs.of(llm.runner), share)
    passes = Settled(costs.of(llm.runner))
    own, trees, token = _beside(llm, texts, wide, passes)
    drafting = {source.name: _asked(source, texts) for source in sources if source not in models}
    for source in models:
        drafting[source.name] = _grown(llm.runner, source, _fitting(texts, wide), load, share)
    return Machine(passes, own, drafting, trees, token)


class _Told(Drafter):
    """Drafts so many tokens of what is known to be written, or as many that are wrong."""

    name = "told"

    def __init__(self, texts: Sequence[Text], nodes: int, right: bool) -> None:
        wrong = [[(token + 1) % 2 for token in text.output] for text in texts]
        drafts = [text.output for text in texts] if right else wrong
        self.outputs = {tuple(text.asked): each for text, each in zip(texts, drafts, strict=True)}
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


Beside = tuple[float, float]  # seconds of a step, and of each text in it


@torch.inference_mode()
def _beside(
    llm: LLM, texts: Sequence[Text], wide: int, known: PassCosts
) -> tuple[Beside, Beside, float]:
    """What steps take beyond `known` passes.

    Without drafts, what drafts add to that, and what each token of them adds that is accepted.
    Steps of one text and of many, without drafts, with wrong and with right ones, a few at a time
    in turn: a machine that gets slower meanwhile makes none of them look dearer than the others,
    and what a step finds in the caches is left there by one like it.
    """
    some = _fitting(texts, wide)
    nodes = min(NODES, max(1, min(map(len, some)) // LEAST - 1))
    one, many = 1, len(some)
    kinds = [(count, kind) for count in sorted({one, many}) for kind in (None, False, True)]
    with ExitStack() as stack:
        sides = {
            (count, right): _Side(llm, some[:count], nodes, right, stack) for count, right in kinds
        }
        for turn in range(1 + STEPS // TOGETHER):  # the first one reads the prompts
            for kind in clock.in_turn(kinds, turn):
                sides[kind].steps(TOGETHER if turn else 1)
    beyond = {kind: side.beyond(known) for kind, side in sides.items()}
    own, drafted = [_shared(beyond[one, n], beyond[many, n], many) for n in (None, False)]
    token = max(0.0, beyond[many, True] - beyond[many, False]) / (nodes * many)
    return own, (drafted[0] - own[0], drafted[1] - own[1]), token


def _fitting(texts: Sequence[Text], wide: int) -> list[Text]:
    """Up to so many texts: of those long enough to be timed the ones with the shortest prompts."""
    enough = (1 + STEPS) * (1 + NODES)
    order = sorted(texts, key=lambda text: (max(0, enough - len(text)), len(text.prompt)))
    return order[:wide]


def _shared(one: float, all_: float, count: int) -> Beside:
    """What a step takes, and each text in it, by what steps of one and of so many took."""
    each = (all_ - one) / (count - 1) if count > 1 else 0.0
    return one - each, each


class _Side:
    """An engine that writes texts of which so many tokens are drafted in each step.

    right: whether all of them are, or none; None: nothing is drafted.
    """

    def __init__(
        self, llm: LLM, texts: Sequence[Text], nodes: int, right: bool | None, stack: ExitStack
    ) -> None:
        nodes = 0 if right is None else nodes
        told = None if right is None else _Told(texts, nodes, right)
        side = stack.enter_context(LLM(llm, speculate=told, max_batch=len(texts)))
        self.engine, self.each, self.rows = side.engine, 1 + nodes, len(texts) * (1 + nodes)
        self._took: list[tuple[float, float]] = []  # seconds of a step, and what its pass read
        # All prompts are read in one pass: else the first texts end while others are being read.
        self.engine.scheduler.prompt_budget = 2 * sum(len(text.prompt) for text in texts)
        params = SamplingParams(
            temperature=texts[0].temperature,
            max_tokens=min(map(len, texts)),
            ignore_eos=True,
            seed=texts[0].seed,
        )
        self.requests = [made for text in texts for made in side.prepare(text.asked, params)]
        for request in self.requests:
            self.engine.add(request)

    def steps(self, count: int) -> None:
        """The first of several is not counted: it finds what others left in the caches."""
        for number in range(count):
            reading = sum(attended(self.each, len(each.tokens) - 1) for each in self.requests)
            began = time.perf_counter()
            self.engine.step()
            took = time.perf_counter() - began
            if number and self.engine.drafts.cost[1] == self.rows:
                self._took.append((took, reading))

    def beyond(self, known: PassCosts) -> float:
        """Median seconds of a step beyond those of its pass; 0: there was no such step."""
        more = [took - known.seconds(self.rows, reading) for took, reading in self._took]
        return statistics.median(more) if more else 0.0


def _asked(source: Source, texts: Sequence[Text]) -> Drafting:
    """As it was measured while the texts were recorded."""
    seconds = statistics.median(text.seconds[source.name] for text in texts)
    if not source.grows:
        return Drafting(seconds)
    levels = max(1, dict(source.part.options)["num_draft_tokens"])
    return Drafting(0.0, level=seconds / levels)


@torch.inference_mode()
def _grown(
    target: Target, source: Source, texts: Sequence[Text], load: Loaded, seconds: float
) -> Drafting:
    """Of a draft model: drafts of two lengths, of one text and of all of these.

    Each behind what is written after another one.
    """
    known, took = PassCosts(), dict[tuple[int, int], float]()
    some = [text for text in texts if len(text) > LOW + 1]
    many = len(some)
    for length in (LOW, HIGH):
        drafter = adopt(source.grown(num_draft_tokens=length, min_confidence=0.0).proposer())
        loaded: Load = load
        drafter.bind(target, loaded)
        if length == LOW:
            runner: Target = getattr(drafter, "beside").runner  # noqa: B009
            known = costs.of(runner)
            measure(runner, known, seconds / 2)
        for count in sorted({1, many} if some else set()):
            took[length, count] = _proposing(drafter, some[:count])
        drafter.close()
    if not some:  # too short to tell
        return Drafting(0.0, level=known.one, passes=known)
    levels = HIGH - LOW
    one, all_ = [(took[HIGH, count] - took[LOW, count]) / levels for count in (1, many)]
    level, node = _shared(max(0.0, one), max(0.0, all_), many)
    first, every = [took[LOW, count] - each for count, each in ((1, one), (many, all_))]
    call, text = _shared(max(0.0, first), max(0.0, every), many)
    return Drafting(text, call, level, node, known)


def _proposing(drafter: Drafter, texts: Sequence[Text]) -> float:
    """Median seconds of a call for these texts, whose prompts are read before."""
    writings = [
        Writing(
            KEY - number,
            text.prompt,
            SamplingParams(temperature=text.temperature, max_tokens=text.longest + HIGH + 2),
            seed=text.seed,
            rule=rules.named("coupled"),
            encoder_input=None if text.reads is None else EncoderInput(text.reads),
        )
        for number, text in enumerate(texts)
    ]
    for _ in range(1 + sum(len(text.prompt) for text in texts) // SLICE):
        drafter.read_along(writings)
    passed, took = np.zeros(CACHES, np.uint8), list[float]()
    for at in range(0, min([2 * (ASKED + 1), *map(len, texts)]), 2):
        for writing, text in zip(writings, texts, strict=True):
            writing.tokens = [*text.prompt, *text.output[:at]]
            writing.history.append(text.output[max(0, at - 2) : at])
        passed += 1  # as the target's pass before it, which leaves nothing of it in the caches
        began = time.perf_counter()
        drafter.propose(writings)
        if at:  # the first one reads what is left of the prompts
            took.append(time.perf_counter() - began)
    for writing in writings:
        drafter.release(writing)
    return statistics.median(took)
