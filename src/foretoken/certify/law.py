"""Whether the rejection rule draws from the target's law: the first three tokens jointly.

The exact law of three tokens is enumerated from one plain pass over a tree of all of them; many
runs with different seeds are counted against it by a chi-square test over pooled bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from foretoken.certify.identity import KEY, Reference
from foretoken.llm import LLM
from foretoken.runners.base import Work
from foretoken.sampling import History, SamplingParams, law
from foretoken.tree import TokenTree

TOKENS = 3  # whose joint law is tested
LEAST = 5  # expected counts of a bin
FALSE_ALARM = 1e-3  # of a whole certificate, shared equally among its tests
BATCH = 32  # runs at once
LONGEST = 64  # tokens of a context: it is read many times
# Few candidates, so that all triples are enumerated; penalties, so that paths differ in history.
SETTINGS = {
    "top_k=4": SamplingParams(temperature=1.0, top_k=4),
    "penalties, top_k=4": SamplingParams(
        temperature=1.5, top_k=4, repetition_penalty=1.3, frequency_penalty=0.5
    ),
}

Law = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Test:
    """One chi-square test."""

    setting: str
    context: int  # number of the prompt
    runs: int
    bins: int
    p: float  # the chance of counts at least as far off under the target's law
    impossible: int  # runs that wrote what the target never writes

    def fails(self, tests: int) -> bool:
        """Whether it does, one of so many."""
        return self.impossible > 0 or self.p < FALSE_ALARM / tests


def contexts(made: Sequence[Reference], count: int) -> list[tuple[int, list[int]]]:
    """Prompt numbers and contexts behind which the target is least sure, one per prompt."""
    found = []
    for ref in made:
        spread = [float(row.float().topk(4).values.softmax(-1).amax()) for row in ref.rows]
        at = min(range(len(spread)), key=spread.__getitem__)
        found.append((spread[at], ref.number, [*ref.prompt, *ref.tokens[:at]][-LONGEST:]))
    return [(number, ids) for _, number, ids in sorted(found)[:count]]


def exact(llm: LLM, ids: Sequence[int], params: SamplingParams) -> Law:
    """The target's joint law of the next tokens, by enumeration."""
    history = History(ids, llm.end_ids if params.min_tokens else ())
    tokens, parents, frontier, found = [ids[-1]], [-1], [(0, 1.0)], Law()
    for depth in range(TOKENS):
        tree = TokenTree(tokens, parents)
        (output,) = llm.runner.forward([Work(KEY, ids[:-1], tree)])
        rows = output.logits.clone()
        llm.runner.free(KEY)
        following = []
        for node, p in frontier:
            path = tree.path_tokens(node)
            each = law(rows[node], params, history, path)
            for token in each.nonzero()[:, 0].tolist():
                share = p * float(each[token])
                if depth == TOKENS - 1:
                    found[(*path, token)] = share
                    continue
                following.append((len(tokens), share))
                tokens, parents = [*tokens, token], [*parents, node]
        frontier = following
    return found


def tests(
    llm: LLM,
    method: str,
    chosen: Sequence[tuple[int, list[int]]],
    runs: int,
    seed: int,
    tick: Callable[[str, int], None],
) -> Iterator[Test]:
    """Every setting at every context, counted over `runs` runs of `llm`, which drafts."""
    size = llm.engine.scheduler.max_batch
    for number, ids in chosen:
        for setting, params in SETTINGS.items():
            counts: Counter[tuple[int, ...]] = Counter()
            for begin in range(seed, seed + runs, size):
                seeds = range(begin, min(begin + size, seed + runs))
                counts.update(_written(llm, ids, params, seeds))
                tick(f"{method}, law, {setting}", len(seeds))
            want = exact(llm, ids, params)
            impossible = sum(n for triple, n in counts.items() if not want.get(triple))
            yield Test(setting, number, runs, *chi_square(want, counts, runs), impossible)


def _written(
    llm: LLM, ids: list[int], params: SamplingParams, seeds: Sequence[int]
) -> list[tuple[int, ...]]:
    each = [replace(params, seed=seed, max_tokens=TOKENS, ignore_eos=True) for seed in seeds]
    done = llm.generate([ids] * len(each), each)
    for one in done:
        if one.error is not None or one.warnings:
            raise ValueError(one.error or one.warnings[0])
    return [tuple(one.token_ids) for one in done]


def chi_square(want: Law, counts: Counter[tuple[int, ...]], runs: int) -> tuple[int, float]:
    """Bins and p of Pearson's test; outcomes expected less than `LEAST` times are pooled."""
    bins: list[list[float]] = []  # expected, observed
    rest = [0.0, 0.0]
    for triple, share in want.items():
        pair = [runs * share, float(counts[triple])]
        if pair[0] >= LEAST:
            bins.append(pair)
        else:
            rest = [rest[0] + pair[0], rest[1] + pair[1]]
    if rest[0] >= LEAST or not bins:
        bins.append(rest)
    else:  # too few to stand alone: to the rarest
        rarest = min(bins)
        rarest[:] = [rarest[0] + rest[0], rarest[1] + rest[1]]
    if len(bins) < 2:
        return 1, 1.0  # the target always writes the same: nothing to test
    statistic = sum((seen - wanted) ** 2 / wanted for wanted, seen in bins)
    half = torch.tensor([(len(bins) - 1) / 2, statistic / 2], dtype=torch.float64)
    return len(bins), float(torch.special.gammaincc(half[0], half[1]))
