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
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from draftproof.certify import law, sampled
from draftproof.certify.certificate import (
    DEFECT,
    ENDED,
    IDENTICAL,
    NEAR_TIES,
    NOT_EXERCISED,
    SETTINGS,
    Case,
    Certificate,
)
from draftproof.certify.contexts import Context, candidates, tests
from draftproof.certify.identity import Outcome, examine
from draftproof.certify.plain import Bound, Reference, calibrate, references
from draftproof.llm import LLM
from draftproof.rules import RULES as rules_of_acceptance
from draftproof.rules import named
from draftproof.runners.kv import available_bytes
from draftproof.sampling import SamplingParams

RULES = tuple(name for name, rule in rules_of_acceptance.items() if not rule.lossy)
CONTEXTS = 2  # per method, of the tests of law
SAID = ("greedy", "temperature 0.7")  # whose texts are contexts of the tests of law
EARLY = 4  # tokens: where every text ends before, next to nothing would be compared

__all__ = [
    "CONTEXTS",
    "DEFECT",
    "IDENTICAL",
    "NEAR_TIES",
    "NOT_EXERCISED",
    "RULES",
    "SETTINGS",
    "Case",
    "Certificate",
    "certify",
]

Tick = Callable[[str, float], None]  # what runs now, and the share of all that is done


class Parts:
    """How much of a certificate is done, in parts that take about as long as one another."""

    def __init__(self, count: int, tick: Tick) -> None:
        self.now = ""  # the part that runs
        self._count, self._begun, self._tick = count, 0, tick

    def begin(self, name: str, of: int) -> Callable[[int], None]:
        """A part of so many pieces; returns what is told of pieces that are done."""
        before, pieces = self._begun, 0
        self.now, self._begun = name, before + 1

        def done(more: int) -> None:
            nonlocal pieces
            pieces += more
            self._tick(name, (before + pieces / of) / self._count)

        done(0)
        return done


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
    tick: Tick = lambda what, share: None,
) -> Certificate:
    """Certify `methods` (name -> what makes what `LLM(speculate=)` takes) on `llm`'s weights.

    prompts: token ids; each is written alone and all in one batch, by at most `max_tokens` tokens,
    fewer for some, so that blocks are cut. runs: per test of law, at `contexts` contexts.
    An interrupt ends it: the certificate holds what was finished, and says that it is incomplete.
    """
    rules = [*dict.fromkeys(rules)]
    _check(methods, prompts, rules, max_tokens=max_tokens, runs=runs, contexts=contexts)
    prompts, runner = _several(prompts), llm.runner
    cases = [Case(name, rule) for rule in rules for name in methods]
    drawn = [case for case in cases if case.drawn]
    parts = Parts((1 + len(cases)) * len(SETTINGS) + len(drawn) * len(law.SETTINGS), tick)
    certificate = Certificate(runner.name, runner.precision, seed, prompts, cases=cases)
    try:
        listed = _compare(llm, methods, certificate, max_tokens, parts)
        seeds, count = range(seed, seed + runs), min(contexts, len(prompts))
        # What a context shares with the run before it is read from there.
        options: dict[str, Any] = {"max_batch": law.BATCH, "prefix_cache": not llm.runner.encodes}
        for case in drawn:
            speculate = methods[case.method]()
            with LLM(
                llm, speculate=speculate, rule=case.rule, max_length=llm.max_length, **options
            ) as engine:
                _test(case, engine, listed, count, seeds, certificate.bound, parts)
    except KeyboardInterrupt:
        if not any(case.outcomes for case in cases):
            raise
        certificate.interrupted = parts.now
    return certificate


def _compare(
    llm: LLM,
    methods: Mapping[str, Callable[[], Any]],
    certificate: Certificate,
    max_tokens: int,
    parts: Parts,
) -> list[Context]:
    """Every case under every setting against plain decoding; returns contexts to test laws at."""
    prompts, share = certificate.prompts, partial(LLM, llm, max_length=llm.max_length)
    listed = list[Context]()
    with ExitStack() as opened:
        plain = opened.enter_context(share(max_batch=1))  # whatever `llm` itself drafts with
        # One for all rules: a method may hold a draft, which is loaded as often as it is made.
        engines = {
            name: opened.enter_context(share(speculate=make(), max_batch=len(prompts)))
            for name, make in methods.items()
        }
        for setting, refs in _plain(plain, prompts, max_tokens, certificate.seed, parts):
            if not certificate.settings:
                certificate.bound = calibrate(plain, refs, _twin(llm))
            if setting in SAID:
                listed += candidates(refs, llm.max_length, plain=not listed)
            certificate.settings[setting] = [ref.params for ref in refs]
            for case in certificate.cases:
                engines[case.method].engine.rule = named(case.rule)
                _examine(case, setting, plain, engines[case.method], refs, certificate.bound, parts)
    return listed


def _check(
    methods: Mapping[str, Any], prompts: Sequence[Any], rules: Sequence[str], **counts: int
) -> None:
    """Refuse what would compare nothing."""
    if "none" in methods:
        raise ValueError("method none is what everything is compared with: name another one")
    for name in rules:
        if name not in RULES:
            raise ValueError(f"rule {name!r} cannot be certified: use {', '.join(RULES)}")
    given = {"methods": len(methods), "prompts": len(prompts), "rules": len(rules), **counts}
    for name, count in given.items():
        if count < 1:
            raise ValueError(f"{name}: {count} of them certify nothing, give 1 or more")


def _several(prompts: Sequence[list[int]]) -> list[list[int]]:
    """The prompts; where all are the same, one more, else no batch could mix them up."""
    listed = [*map(list, prompts)]
    first = listed[0]
    if any(ids != first for ids in listed):
        return listed
    return [*listed, first[: len(first) // 2] or first * 2]


def _plain(
    llm: LLM, prompts: Sequence[list[int]], max_tokens: int, seed: int, parts: Parts
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
        done = parts.begin(f"plain, {setting}", len(prompts))
        refs = references(llm, prompts, each, partial(done, 1))
        if all(ref.reason == "stop" and len(ref.tokens) < EARLY for ref in refs):
            each = [replace(one, ignore_eos=True, stop_token_ids=()) for one in each]
            refs = references(llm, prompts, each, lambda: None)
        greedy = greedy or refs
        yield setting, refs


def _examine(
    case: Case,
    setting: str,
    llm: LLM,
    engine: LLM,
    refs: list[Reference],
    bound: Bound,
    parts: Parts,
) -> None:
    """Every prompt alone, then all in one batch; draws of its own in one batch only."""
    outcome = Outcome()
    drawn = named(case.rule).wants_laws(SETTINGS[setting])
    look: Callable[[LLM, Sequence[Reference], Bound], Outcome]
    look = partial(sampled.examine, llm) if drawn else examine
    groups = [refs] if drawn else [*([ref] for ref in refs), refs]
    done = parts.begin(f"{case.method}, {case.rule}, {setting}", sum(map(len, groups)))
    for group in groups:
        outcome.add(look(engine, group, bound))
        done(len(group))
    case.outcomes[setting] = outcome


def _test(
    case: Case,
    engine: LLM,
    listed: Sequence[Context],
    count: int,
    seeds: range,
    bound: Bound,
    parts: Parts,
) -> None:
    """The law under every setting behind `count` of the contexts."""
    for setting in law.SETTINGS:
        done = parts.begin(f"{case.method}, law, {setting}", count * len(seeds))
        case.laws.extend(tests(engine, listed, setting, count, seeds, bound.value, done))


def _ending(params: SamplingParams, ref: Reference) -> SamplingParams:
    """A stop token that plain decoding writes for the first time in its middle."""
    fresh = [i for i, token in enumerate(ref.tokens) if token not in ref.tokens[:i]]
    at = min(fresh, key=lambda i: abs(i - 2 * len(ref.tokens) // 3)) if fresh else 0
    return replace(params, stop_token_ids=ref.tokens[at : at + 1])


def _twin(llm: LLM) -> Any:
    """The model in a wider precision, or float64 in a narrower one.

    None where nothing may differ, or where it has no room.
    """
    if llm.runner.batch_invariant:
        return None
    model = llm.runner.model
    size = model.dtype.itemsize
    other = torch.float64 if size == torch.float32.itemsize else torch.float32
    needed = sum(parameter.numel() for parameter in model.parameters()) * other.itemsize
    free = available_bytes(model.device)
    if free is not None and needed > free:
        return None
    try:
        return copy.deepcopy(model).to(other)
    except (RuntimeError, MemoryError):  # no room, or quantised: blocks alone calibrate
        return None
