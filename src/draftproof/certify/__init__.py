"""The certificate: on the user's own model, that drafting changes nothing.

Under the coupled rule every position of every method is compared with plain decoding, over a grid
of sampling settings, alone and in a batch (`identity`). Under the rejection rule greedy output is;
where it samples, the logits are (`sampled`), and the joint law of three tokens is tested (`law`).
Knows methods by name only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from draftproof.certify import law, sampled
from draftproof.certify.identity import (
    Bound,
    Finding,
    Outcome,
    Reference,
    calibrate,
    examine,
    references,
)
from draftproof.llm import LLM
from draftproof.runners.kv import available_bytes
from draftproof.sampling import SamplingParams

IDENTICAL, DEFECT, NEAR_TIES = 0, 1, 3  # exit codes
RULES = ("coupled", "rejection")
CONTEXTS = 2  # per method, of the tests of law
ENDED = "greedy, a stop token"
SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    ENDED: SamplingParams(ignore_eos=True),  # the token is chosen from what plain decoding wrote
    "temperature 0.7": SamplingParams(temperature=0.7),
    "top_k, top_p, min_p": SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5
    ),
}

Tick = Callable[[str, int], None]  # what is being done, and how many of `total` it was


@dataclass(frozen=True)
class Case:
    """One method under one rule."""

    method: str
    rule: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by setting
    laws: list[law.Test] = field(default_factory=list)

    @property
    def whole(self) -> Outcome:
        """The outcomes of all settings together."""
        total = Outcome()
        for outcome in self.outcomes.values():
            total.add(outcome)
        return total


@dataclass(frozen=True)
class Certificate:
    """What was compared, and what was found."""

    runner: str
    precision: str
    seed: int
    prompts: list[list[int]]
    settings: dict[str, list[SamplingParams]]  # one per prompt
    bound: Bound
    cases: list[Case]
    contexts: dict[int, list[int]]  # of the tests of law, by number of the prompt
    runs: int  # of each of them

    @property
    def tests(self) -> int:
        """Tests of law in all, among which the false alarms are shared."""
        return sum(len(case.laws) for case in self.cases)

    @property
    def failed_laws(self) -> list[tuple[Case, law.Test]]:
        """Laws that are not the target's, and drafters that failed under such a test."""
        return [(c, test) for c in self.cases for test in c.laws if test.fails(self.tests)]

    @property
    def defects(self) -> list[tuple[Case, str, Finding]]:
        return [
            (case, setting, finding)
            for case in self.cases
            for setting, outcome in case.outcomes.items()
            for finding in outcome.defects
        ]

    @property
    def near_ties(self) -> int:
        return sum(len(case.whole.near_ties) for case in self.cases)

    @property
    def code(self) -> int:
        """0: identical; 1: a defect; 3: near-ties only."""
        if self.defects or self.failed_laws:
            return DEFECT
        return NEAR_TIES if self.near_ties else IDENTICAL

    @property
    def verdict(self) -> str:
        positions = sum(case.whole.positions for case in self.cases)
        over = f"over {positions:,} positions"
        if self.tests:
            over += f" and {self.tests} tests of law"
        if self.code == DEFECT:
            found = f"{len(self.defects)} differences"
            if self.failed_laws:
                found += f" and {len(self.failed_laws)} failed tests of law"
            return f"DEFECT: {found} {over}"
        if self.code == NEAR_TIES:
            return f"NEAR-TIES: {self.near_ties} tokens differ by rounding alone {over}"
        return f"IDENTICAL: nothing differs {over}"


def total(methods: int, prompts: int, rules: Sequence[str], runs: int, contexts: int) -> int:
    """What `certify` counts up to, by its callback."""
    identity = prompts * (len(SETTINGS) + 2 * methods * len(SETTINGS) * ("coupled" in rules))
    if "rejection" not in rules:
        return identity
    sampling = sum(params.temperature > 0 for params in SETTINGS.values())
    greedy = len(SETTINGS) - sampling
    identity += prompts * methods * (2 * greedy + sampling)
    return identity + methods * min(contexts, prompts) * len(law.SETTINGS) * runs


def certify(
    llm: LLM,
    methods: Mapping[str, Callable[[], Any]],
    prompts: Sequence[list[int]],
    *,
    rules: Sequence[str] = RULES,
    max_tokens: int = 48,
    seed: int = 0,
    runs: int = 1000,
    contexts: int = CONTEXTS,
    tick: Tick = lambda what, count: None,
) -> Certificate:
    """Certify `methods` (name -> what makes what `LLM(speculate=)` takes) on `llm`.

    prompts: token ids; each is written alone and all in one batch, by at most `max_tokens` tokens,
    fewer for some, so that blocks are cut. runs: per test of law, at `contexts` contexts.
    """
    if "none" in methods:
        raise ValueError("method none is what everything is compared with: name another one")
    cases = [Case(name, rule) for rule in rules for name in methods]
    bound: Bound | None = None
    settings = dict[str, list[SamplingParams]]()
    with ExitStack() as opened:
        # One for all rules: a method may hold a draft, which is loaded as often as it is made.
        engines = {
            name: opened.enter_context(LLM(llm, speculate=made(), max_batch=max(1, len(prompts))))
            for name, made in methods.items()
        }
        for setting, refs in _plain(llm, prompts, max_tokens, seed, tick):
            if bound is None:
                bound = calibrate(llm, refs, _wider(llm))
                chosen = law.contexts(refs, contexts, llm.max_length)
            settings[setting] = [ref.params for ref in refs]
            for case in cases:
                engines[case.method].engine.rule = case.rule
                _examine(case, setting, llm, engines[case.method], refs, bound, tick)
    assert bound is not None
    for case in cases:
        if case.rule == "rejection":
            _test(case, llm, methods[case.method](), chosen, range(seed, seed + runs), bound, tick)
    runner = llm.runner
    return Certificate(
        runner.name,
        runner.precision,
        seed,
        [*map(list, prompts)],
        settings,
        bound,
        cases,
        dict(chosen),
        runs,
    )


def _plain(
    llm: LLM, prompts: Sequence[list[int]], max_tokens: int, seed: int, tick: Tick
) -> Iterator[tuple[str, list[Reference]]]:
    """Plain decoding under every setting, with ends at different places of a block."""
    greedy: list[Reference] = []
    for setting, params in SETTINGS.items():
        each = [
            replace(params, max_tokens=max(1, max_tokens - number % 5), seed=seed + number)
            for number in range(len(prompts))
        ]
        if setting == ENDED:
            each = [_ending(one, ref) for one, ref in zip(each, greedy, strict=True)]
        made = references(llm, prompts, each, partial(tick, f"plain, {setting}", 1))
        greedy = greedy or made
        yield setting, made


def _examine(
    case: Case,
    setting: str,
    llm: LLM,
    engine: LLM,
    made: list[Reference],
    bound: Bound,
    tick: Tick,
) -> None:
    """Every prompt alone, then all in one batch; draws of its own in one batch only."""
    what, outcome = f"{case.method}, {case.rule}, {setting}", Outcome()
    draws = case.rule == "rejection" and SETTINGS[setting].temperature > 0
    look: Callable[[LLM, Sequence[Reference], Bound], Outcome]
    look = partial(sampled.examine, llm) if draws else examine
    for group in [made] if draws else [*([ref] for ref in made), made]:
        tick(what, 0)
        outcome.add(look(engine, group, bound))
        tick(what, len(group))
    case.outcomes[setting] = outcome


def _test(
    case: Case,
    llm: LLM,
    speculate: Any,
    chosen: list[tuple[int, list[int]]],
    seeds: Sequence[int],
    bound: Bound,
    tick: Tick,
) -> None:
    """The law under every setting behind every context."""
    # What a context shares with the run before it is read from there.
    options: dict[str, Any] = {"max_batch": law.BATCH, "prefix_cache": True}
    with LLM(llm, speculate=speculate, rule=case.rule, **options) as engine:
        for number, ids in chosen:
            for setting in law.SETTINGS:
                done = partial(tick, f"{case.method}, law, {setting}")
                case.laws.append(law.test(engine, number, ids, setting, seeds, bound.value, done))


def _ending(params: SamplingParams, ref: Reference) -> SamplingParams:
    """A stop token that plain decoding writes for the first time in its middle."""
    fresh = [i for i, token in enumerate(ref.tokens) if token not in ref.tokens[:i]]
    at = min(fresh, key=lambda i: abs(i - 2 * len(ref.tokens) // 3)) if fresh else 0
    return replace(params, stop_token_ids=ref.tokens[at : at + 1])


def _wider(llm: LLM) -> Any:
    """The model in a wider precision; None where nothing may differ, or where it has no room."""
    if llm.runner.batch_invariant:
        return None
    model = llm.runner.model
    wide = torch.float32 if model.dtype.itemsize < 4 else torch.float64
    needed = sum(parameter.numel() for parameter in model.parameters()) * wide.itemsize
    free = available_bytes(model.device)
    if free is not None and needed > free:
        return None
    try:
        return copy.deepcopy(model).to(wide)  # type: ignore[arg-type]  # of a decorator
    except (RuntimeError, MemoryError):  # no room, or quantised: blocks alone calibrate
        return None
