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
    draws,
)
from draftproof.certify.contexts import Context, candidates, tests
from draftproof.certify.identity import Bound, Outcome, Reference, calibrate, examine, references
from draftproof.llm import LLM
from draftproof.rules import named
from draftproof.runners.kv import available_bytes
from draftproof.sampling import SamplingParams

RULES = ("coupled", "rejection")
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
    "total",
]

Tick = Callable[[str, int], None]  # what is being done, and how many of `total` it was


def total(
    methods: int, prompts: Sequence[list[int]], rules: Sequence[str], runs: int, contexts: int
) -> int:
    """What `certify` counts up to, by its callback."""
    count = len(_several(prompts))
    identity = count * (len(SETTINGS) + 2 * methods * len(SETTINGS) * ("coupled" in rules))
    if "rejection" not in rules:
        return identity
    sampling = sum(map(draws, SETTINGS.values()))
    greedy = len(SETTINGS) - sampling
    identity += count * methods * (2 * greedy + sampling)
    return identity + methods * min(contexts, count) * len(law.SETTINGS) * runs


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
    """Certify `methods` (name -> what makes what `LLM(speculate=)` takes) on `llm`'s weights.

    prompts: token ids; each is written alone and all in one batch, by at most `max_tokens` tokens,
    fewer for some, so that blocks are cut. runs: per test of law, at `contexts` contexts.
    """
    rules = [*dict.fromkeys(rules)]
    _check(methods, prompts, rules, max_tokens=max_tokens, runs=runs, contexts=contexts)
    prompts = _several(prompts)
    cases = [Case(name, rule) for rule in rules for name in methods]
    bound: Bound | None = None
    settings, listed = dict[str, list[SamplingParams]](), list[Context]()
    share = partial(LLM, llm, max_length=llm.max_length)
    with ExitStack() as opened:
        plain = opened.enter_context(share(max_batch=1))  # whatever `llm` itself drafts with
        # One for all rules: a method may hold a draft, which is loaded as often as it is made.
        engines = {
            name: opened.enter_context(share(speculate=made(), max_batch=len(prompts)))
            for name, made in methods.items()
        }
        for setting, refs in _plain(plain, prompts, max_tokens, seed, tick):
            if bound is None:
                bound = calibrate(plain, refs, _wider(llm))
            if setting in SAID:
                listed += candidates(refs, llm.max_length, plain=not listed)
            settings[setting] = [ref.params for ref in refs]
            for case in cases:
                engines[case.method].engine.rule = named(case.rule)
                _examine(case, setting, plain, engines[case.method], refs, bound, tick)
    assert bound is not None
    # What a context shares with the run before it is read from there.
    options: dict[str, Any] = {"max_batch": law.BATCH, "prefix_cache": True, "rule": "rejection"}
    count, seeds = min(contexts, len(prompts)), range(seed, seed + runs)
    for case in cases:
        if case.rule == "rejection":
            with share(speculate=methods[case.method](), **options) as engine:
                _test(case, engine, listed, count, seeds, bound, tick)
    runner = llm.runner
    return Certificate(runner.name, runner.precision, seed, prompts, settings, bound, cases)


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
        if all(ref.reason == "stop" and len(ref.tokens) < EARLY for ref in made):
            each = [replace(one, ignore_eos=True, stop_token_ids=()) for one in each]
            made = references(llm, prompts, each, lambda: None)
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
    drawn = case.rule == "rejection" and draws(SETTINGS[setting])
    look: Callable[[LLM, Sequence[Reference], Bound], Outcome]
    look = partial(sampled.examine, llm) if drawn else examine
    for group in [made] if drawn else [*([ref] for ref in made), made]:
        tick(what, 0)
        outcome.add(look(engine, group, bound))
        tick(what, len(group))
    case.outcomes[setting] = outcome


def _test(
    case: Case,
    engine: LLM,
    listed: Sequence[Context],
    count: int,
    seeds: range,
    bound: Bound,
    tick: Tick,
) -> None:
    """The law under every setting behind `count` of the contexts."""
    for setting in law.SETTINGS:
        what = f"{case.method}, law, {setting}"
        tick(what, 0)
        done = partial(tick, what)
        case.laws.extend(tests(engine, listed, setting, count, seeds, bound.value, done))


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
