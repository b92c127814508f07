"""Texts, sources and machines that are made up: the controller is driven by a clock of ours.

A text is a row of tokens that is known beforehand. A source guesses the next one right with a
chance of its own at each place, and tells a score that says something about that chance. A machine
takes so long for a pass over so many rows. Nothing here looks at a real clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof import rules
from draftproof.drafting.base import Drafter, GoesOn
from draftproof.drafting.control import Control
from draftproof.proposers.auto import Auto
from draftproof.runners.costs import PassCosts
from draftproof.sampling import SamplingParams
from draftproof.tree import TokenTree
from draftproof.writing import Feedback, Writing

FLAT = ((1, 1.0), (4, 1.02), (8, 1.05), (12, 1.10), (16, 1.37), (24, 1.85), (32, 2.26), (96, 6.0))
STEEP = ((1, 1.0), (4, 1.46), (8, 2.04), (12, 2.54), (16, 3.0), (24, 3.6), (32, 4.4), (96, 11.0))
STAIRS = ((1, 1.0), (4, 1.0), (5, 1.5), (8, 1.5), (9, 2.0), (16, 2.0), (17, 3.2), (96, 9.0))
ONE = 0.01  # seconds of a pass over one row
WRONG = 0  # a token that no text has
FIXED = (0, 1, 2, 4, 8, 12)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)

Curve = Sequence[tuple[int, float]]


def cost(curve: Curve, rows: int) -> float:
    """Of a pass, in passes over one row; linear between the known ones."""
    for (low, at_low), (high, at_high) in zip(curve, curve[1:], strict=False):
        if rows <= high:
            return at_low + (at_high - at_low) * (rows - low) / (high - low)
    return curve[-1][1] * rows / curve[-1][0]


def taught(costs: PassCosts, curve: Curve, passes: int, seed: int = 0, slower: float = 1.0) -> None:
    """Passes over any number of rows, each a little longer or shorter than it should be."""
    rng = random.Random(seed)
    for _ in range(passes):
        rows = rng.choice(SIZES)
        costs.observe(rows, 0, cost(curve, rows) * ONE * slower * rng.lognormvariate(0, 0.05))


def chances(kind: str, length: int, rng: random.Random) -> list[float]:
    """Of a source's token at each place, given that those before it are right."""
    shapes = {"sure": (30, 0.5), "easy": (6, 0.7), "hard": (1, 1.6), "hopeless": (0.3, 8)}
    found: list[float] = []
    easy = True
    while len(found) < length:
        if kind in ("mixed", "turning"):
            other = "hard" if kind == "mixed" else "hopeless"
            # Runs of 40, of geometric length where the text is mixed.
            run = 40 if kind == "turning" else 1 + int(rng.expovariate(1 / 40))
            now, easy = ("easy" if easy else other), not easy
        else:
            run, now = length, kind
        found += [min(max(rng.betavariate(*shapes[now]), 1e-4), 1 - 1e-4) for _ in range(run)]
    return found[:length]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Trace:
    """What a source says at each place of a text: is it right, and how sure does it seem."""

    right: list[bool]
    score: list[float]

    @classmethod
    def made(cls, kind: str, length: int, seed: int) -> Trace:
        rng = random.Random(f"{kind} {length} {seed}")
        true = chances(kind, length, rng)
        noisy = [math.log(a / (1 - a)) * 0.8 + rng.gauss(0, 1.2) + 0.5 for a in true]
        return cls([rng.random() < a for a in true], [1 / (1 + math.exp(-x)) for x in noisy])


class Guesser(Drafter):
    """Drafts chains by the traces of texts.

    price: passes over one row that a token takes. call: that its first one takes besides.
    """

    def __init__(
        self,
        traces: dict[int, Trace],
        truths: dict[int, list[int]],
        clock: Clock,
        *,
        price: float = 0.0,
        call: float = 0.0,
        longest: int = 12,
        slower: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.traces, self.truths, self.clock = traces, truths, clock
        self.price, self.call, self.longest, self.slower = price, call, longest, slower
        self.stepwise = price >= 0.03
        self.name, self.drafting_cost = f"guesser {price:g}", price
        self.glanced = not self.stepwise

    def bind(self, target: object, load: object) -> None:
        pass

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self.propose_within(requests, lambda grown: [True] * len(grown))

    def propose_within(self, requests: Sequence[Writing], goes_on: GoesOn) -> list[TokenTree]:
        grown = [Grown(request, request.tokens[-1:]) for request in requests]
        growing = grown
        if not self.stepwise:
            self.clock.now += self.price * ONE * self.slower()
        for depth in range(self.longest):
            growing = [each for each in growing if each.request.room > depth + 1]
            going = goes_on(growing) if growing and self.stepwise else [True] * len(growing)
            growing = [each for each, on in zip(growing, going, strict=True) if on]
            if not growing:
                break
            if self.stepwise:
                took = self.price + (0.0 if depth else self.call)
                self.clock.now += took * ONE * self.slower()
            for each in growing:
                self._extend(each)
        return [TokenTree.chain(each.tokens, scores=each.scores) for each in grown]

    def _extend(self, grown: Grown) -> None:
        at = len(grown.request.tokens) + len(grown.tokens) - 1
        trace, truth = self.traces[grown.request.key], self.truths[grown.request.key]
        fine = grown.tokens[1:] == truth[len(grown.request.tokens) :][: len(grown.tokens) - 1]
        grown.parents.append(len(grown.tokens) - 1)
        grown.tokens.append(truth[at] if fine and trace.right[at] else WRONG)
        grown.scores.append(grown.scores[-1] * trace.score[at])


@dataclass
class Grown:
    request: Writing
    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [1.0])


@dataclass
class Run:
    """What a simulated run took, in passes over one row."""

    seconds: list[float]  # by request, from its begin to its end
    total: float
    tokens: int
    longest_loss: float  # most that a request was behind plain decoding at any token
    requests: list[Writing] = field(default_factory=list)


class Machine:
    """Runs requests with a controller; counts time. slower: of everything, now."""

    def __init__(
        self,
        curve: Curve,
        clock: Clock,
        *,
        slower: Callable[[int], float] = lambda step: 1.0,
        seed: int = 0,
    ) -> None:
        self.curve, self.clock, self.slower = curve, clock, slower
        self.rng, self.steps = random.Random(seed), 0

    def now_slower(self) -> float:
        return self.slower(self.steps)

    def run(
        self,
        auto: Auto,
        truths: Sequence[list[int]],
        *,
        table: PassCosts,
        arrivals: Sequence[int] | None = None,
    ) -> Run:
        """Write the texts; arrivals: the step at which each may begin."""
        auto.control = Control(auto.sources, table, 1000, auto.objective, auto.clock)
        requests = [made(number, truth) for number, truth in enumerate(truths)]
        for request in requests if arrivals is None and len(requests) > 1 else ():
            request.together = requests
        arrivals = arrivals or [0] * len(truths)
        begun: dict[int, float] = {}
        ended: dict[int, float] = {}
        worst, total = 0.0, 0.0
        while len(ended) < len(requests):
            now = [
                request
                for request in requests
                if request.key not in ended and arrivals[request.key] <= self.steps
            ]
            self.steps += 1
            if not now:
                continue
            for request in now:
                begun.setdefault(request.key, self.clock.now)
            began = self.clock.now
            table.plan(len(now), 0)
            idle = auto.idle(now)
            trees = [TokenTree.chain(r.tokens[-1:]) for r in now] if idle else auto.propose(now)
            rows = sum(map(len, trees))
            seconds = cost(self.curve, rows) * ONE * self.now_slower()
            self.clock.now += seconds
            table.observe(rows, 0, seconds * self.rng.lognormvariate(0, 0.04))
            for request, tree in zip(now, trees, strict=True):
                accept(request, tree, truths[request.key])
                if request.room <= 0:
                    ended[request.key] = self.clock.now
                    auto.release(request)
            total += (self.clock.now - began) / ONE / self.now_slower()
            if len(requests) == 1:
                written = len(requests[0].output)
                worst = max(worst, total - written * self.curve[0][1] * 1.01)
        seconds = [(ended[r.key] - begun[r.key]) / ONE for r in requests]
        return Run(seconds, total, sum(len(r.output) for r in requests), worst, requests)


def made(number: int, truth: list[int]) -> Writing:
    """A request of which one token is the prompt."""
    params = SamplingParams(max_tokens=len(truth) - 1)
    return Writing(number, truth[:1], params, seed=number, rule=rules.named("coupled"))


def accept(request: Writing, tree: TokenTree, truth: list[int]) -> None:
    """What the target would have done."""
    path = [0]
    while True:
        token = truth[len(request.tokens)]
        if request.room <= 0:
            break
        request.tokens.append(token)
        following = [c for c in tree.children(path[-1]) if tree.tokens[c] == token]
        if not following or len(request.tokens) == len(truth):
            break
        path.append(following[0])
    request.passes += 1
    request.feedback = Feedback(tree, path, {})


def known(curve: Curve) -> PassCosts:
    """A table that has seen passes of every size."""
    table = PassCosts(9.0)
    for _ in range(6):
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            table.observe(rows, 0, cost(curve, rows) * ONE)
    return table


def texts(count: int, length: int) -> list[list[int]]:
    rng = random.Random(count * length)
    return [[rng.randrange(1, 1000) for _ in range(length + 1)] for _ in range(count)]


def fixed(
    trace: Trace, curve: Curve, price: float, longest: int, free: bool, call: float = 0.0
) -> float:
    """Passes over one row that a draft of one length takes for a text."""
    at, total, end = 1, 0.0, len(trace.right)
    while at < end:
        accepted = 0
        while accepted < longest and at + accepted < end and trace.right[at + accepted]:
            accepted += 1
        drafting = call + (price if free else price * longest) if longest else 0.0
        total += drafting + cost(curve, 1 + longest)
        at += accepted + 1
    return total


def best_fixed(trace: Trace, curve: Curve, price: float, free: bool) -> float:
    """Of the best length, found afterwards."""
    return min(fixed(trace, curve, price, longest, free) for longest in FIXED)
