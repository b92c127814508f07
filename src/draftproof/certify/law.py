"""Whether the rejection rule draws from the target's law: the first three tokens jointly.

The exact law of three tokens is enumerated from one plain pass over a tree of all of them; many
runs with different seeds are counted against it by a chi-square test over pooled bins. Runs have
room for more than three tokens, so that they draft as they do for users, and end once they have
them: the law of the first three does not know what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from torch import Tensor

from draftproof.certify.chi_square import Outcome, chi_square, visible
from draftproof.certify.plain import complaints
from draftproof.counts import Stats
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.runners.base import KEY, Work
from draftproof.sampling import History, SamplingParams, adjust, law
from draftproof.tree import TokenTree

TOKENS = 3  # whose joint law is tested
AHEAD = 12  # that a run has room for beyond them: a tree is never deeper than the room
FALSE_ALARM = 1e-3  # of a whole certificate, shared equally among the tests that were exercised
BATCH = 32  # runs at once
# Few candidates, so that all triples are enumerated; penalties, so that paths differ in history.
SETTINGS = {
    "top_k=4": SamplingParams(temperature=1.0, top_k=4),
    "penalties, top_k=4": SamplingParams(
        temperature=1.5, top_k=4, repetition_penalty=1.3, frequency_penalty=0.5
    ),
}

NEAR = -1  # in an outcome: one of the tokens that rounding may exchange at the border of top_k


@dataclass(frozen=True)
class Law:
    """The probability of every outcome, and after which tokens which others are not told apart."""

    shares: dict[Outcome, float] = field(default_factory=dict)
    bands: dict[Outcome, set[int]] = field(default_factory=dict)

    def outcome(self, tokens: Sequence[int]) -> Outcome:
        """What these tokens count as."""
        for at, token in enumerate(tokens):
            if token in self.bands.get(tuple(tokens[:at]), ()):
                return (*tokens[:at], NEAR)
        return tuple(tokens)


@dataclass(frozen=True)
class Test:
    """One chi-square test."""

    setting: str
    context: int  # number of the prompt
    ids: list[int]  # the context itself
    seeds: tuple[int, int]  # the first, and the one behind the last
    runs: int
    bins: int
    p: float  # the chance of counts at least as far off under the target's law
    surest: float  # the probability of the likeliest outcome
    impossible: int  # runs that wrote what the target never writes
    drafted: int  # tokens of the trees that were verified
    accepted: int  # of the runs' first three tokens, those that a draft had
    rejected: int  # and those that replaced what a draft had
    cause: str | None = None  # why the runs were given up
    reads: Sequence[int] = ()  # what an encoder reads, where the context is its decoder's

    def fails(self, tests: int) -> bool:
        """Whether it does, one of so many that were exercised."""
        if self.cause is not None or self.impossible:
            return True
        return self.idle is None and self.p < FALSE_ALARM / tests

    def sees(self, tests: int) -> float:
        """The total variation from which on it surely finds a false law, one of so many."""
        return visible(self.bins, self.runs, FALSE_ALARM / max(1, tests))

    @property
    def idle(self) -> str | None:
        """Why it says nothing of drafts, if so."""
        if self.cause is not None or self.impossible:
            return None
        if not self.drafted:
            return "nothing was drafted"
        if self.bins < 2:
            return f"all outcomes share one bin (the likeliest has a share of {self.surest:.2g})"
        return None


def asked(llm: LLM, ids: list[int], params: SamplingParams, reads: Sequence[int] = ()) -> Request:
    """A request that goes on from a context. reads: what an encoder reads for it, if there is one.

    It has room for more than what is tested.
    """
    params = replace(params, max_tokens=TOKENS + AHEAD, ignore_eos=True)
    if reads:
        (request,) = llm.prepare(list(reads), params, decoder_prompt=ids)
    else:
        (request,) = llm.prepare(ids, params)
    return request


def exact(
    llm: LLM,
    ids: list[int],
    params: SamplingParams,
    off: float,
    reads: Sequence[int] = (),
) -> Law:
    """The target's joint law of the next tokens, by enumeration.

    off: how far the logits of two passes may differ. A pass that rounds otherwise may have another
    token among the top_k: those that it could be end the path as one outcome.
    """
    one = asked(llm, ids, params, reads)
    ids = one.prompt
    history = History(ids, llm.end_ids if params.min_tokens else ())
    history.process = one.history.process
    tokens, parents, frontier, joint = [ids[-1]], [-1], [(0, 1.0)], Law()
    for depth in range(TOKENS):
        tree = TokenTree(tokens, parents)
        (output,) = llm.runner.forward([Work(KEY, ids[:-1], tree, encoder_input=one.encoder_input)])
        rows = output.logits.clone()
        llm.runner.free(KEY)
        following = []
        for node, p in frontier:
            path = tuple(tree.path_tokens(node))
            each = law(rows[node], params, history, path)
            near = band(adjust(rows[node], params, history, path), each, params, off)
            if near:
                joint.bands[path] = near
                joint.shares[(*path, NEAR)] = p * float(each[sorted(near)].sum())
            for token in each.nonzero()[:, 0].tolist():
                share = p * float(each[token])
                if token in near:
                    continue
                if depth == TOKENS - 1:
                    joint.shares[(*path, token)] = share
                    continue
                following.append((len(tokens), share))
                tokens, parents = [*tokens, token], [*parents, node]
        frontier = following
    return joint


def band(row: Tensor, kept: Tensor, params: SamplingParams, off: float) -> set[int]:
    """Tokens of an adjusted row (V,) that a pass which rounds otherwise may exchange at the border.

    kept: (V,) its law, above 0 for those that survive here. Two logits come nearer by 2 `off` at
    most, which a repetition penalty stretches.
    """
    stretch = max(params.repetition_penalty, 1 / params.repetition_penalty)
    row, reach, inside = row.double(), 2 * off * stretch, kept > 0
    border = row[inside].min() - reach
    outside = row.isfinite() & ~inside & (row >= border)
    if not off or not outside.any():
        return set()
    near = outside | (inside & (row <= row[outside].max() + reach))
    return set(near.nonzero()[:, 0].tolist())


def test(
    llm: LLM,
    number: int,
    ids: list[int],
    setting: str,
    seeds: Sequence[int],
    off: float = 0.0,
    done: Callable[[int], None] = lambda runs: None,
    reads: Sequence[int] = (),
) -> Test:
    """One setting at one context, behind prompt `number`: a run of `llm`, which drafts, per seed.

    off: how far the logits of two passes may differ. reads: see `asked`.
    """
    counts: Counter[Outcome] = Counter()
    params, drafted, accepted, rejected, cause = SETTINGS[setting], 0, 0, 0, None
    want = exact(llm, ids, params, off, reads)
    told = asked(llm, ids, params, reads).warnings
    with closing(_runs(llm, ids, params, seeds, reads)) as news:
        for request, refused in news:
            if cause := next(iter(complaints(request, told)), None):
                break
            drafted += request.stats.drafted
            accepted += sum(request.from_draft[:TOKENS])
            rejected += refused
            counts[want.outcome(request.output[:TOKENS])] += 1
            done(1)
    tested = counts.total()
    done(len(seeds) - tested)
    impossible = sum(n for outcome, n in counts.items() if not want.shares.get(outcome))
    bins, p = (0, 0.0) if cause else chi_square(want.shares, counts, tested)
    return Test(
        setting,
        number,
        ids,
        (seeds[0], seeds[-1] + 1),
        tested,
        bins,
        p,
        max(want.shares.values()),
        impossible,
        drafted,
        accepted,
        rejected,
        cause,
        reads,
    )


def _runs(
    llm: LLM,
    ids: list[int],
    params: SamplingParams,
    seeds: Sequence[int],
    reads: Sequence[int],
) -> Generator[tuple[Request, int]]:
    """A run for every seed, as soon as it has its tokens; the next one takes its place at once.

    With each: how many of these tokens replaced what a draft had.
    """
    requests = [asked(llm, ids, replace(params, seed=seed), reads) for seed in seeds]
    refused = dict.fromkeys(requests, 0)  # of those that were not handed out
    with closing(llm.engine.run(requests)) as news:
        for request in news:
            if request not in refused:
                continue
            if len(request.output) <= TOKENS:  # else what ends this step is not tested
                refused[request] = _refused(request.stats)
            if request.finished or len(request.output) >= TOKENS:
                llm.engine.abort(request)
                yield request, refused.pop(request)


def _refused(stats: Stats) -> int:
    """How often there was a draft to accept, and none was."""
    return sum(stats.offered_per_position) - sum(stats.accepted_per_position)
