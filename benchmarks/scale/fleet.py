"""Replicas, simulated: queues, places, prompts and steps, on what passes were measured to take.

Texts, drafts and acceptance are those of the controller's tests (`tests/support/simulated.py`): a
source guesses the next token right with a chance of its own at each place. The controller is the
real one, with the real table of costs, which learns. What is not in here: the engine's own work
between passes, and attention to what texts are behind, but for what `Own` says; the network.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftproof.drafting.control import Control
from draftproof.proposers.auto import Auto
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import ROWS
from draftproof.tree import TokenTree
from draftproof.writing import Writing
from machines import Machine

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from simulated import ONE, Clock, Guesser, Trace, accept, made  # noqa: E402

MOST = 512  # tokens of prompts in a pass, at most
AUTO = "controller"
APART = 1e-3  # seconds from call to call of clients that ask at once
SPREAD = 0.04  # of a pass, a share of its seconds


@dataclass(frozen=True)
class Call:
    """Somebody wants so many tokens behind a prompt. group: whose first tokens it shares."""

    due: float  # seconds
    prompt: int
    tokens: int
    kind: str  # of text, as `simulated.chances` has them
    group: int = 0
    number: int = 0  # which text it is: the same under every policy


@dataclass
class Served:
    """What became of a call; seconds."""

    call: Call
    first: float = 0.0
    end: float = 0.0
    read: int = 0  # tokens of the prompt that no cache had

    @property
    def first_s(self) -> float:
        return self.first - self.call.due

    @property
    def per_token_s(self) -> float:
        return (self.end - self.first) / max(1, self.call.tokens - 1)


@dataclass
class Place:
    """A text that is read or written."""

    served: Served
    request: Writing
    truth: list[int]
    unread: int


class Replica:
    """A machine with a policy: so many tokens that are always drafted, 0 for none, or AUTO."""

    def __init__(self, machine: Machine, policy: str | int, seed: int) -> None:
        self.machine, self.policy = machine, policy
        self.rng = random.Random(seed)
        self.clock, self.queue = Clock(), deque[Served]()
        self.places: list[Place] = []
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.done: list[Served] = []
        self.steps: Counter[str] = Counter()
        self.table = taught(machine.costs)
        self.number = 0
        self.guesser = Guesser(
            {},
            {},
            self.clock,
            price=machine.price,
            longest=policy if isinstance(policy, int) else 12,
            slower=lambda: self._share(max(1, self.width)),  # a draft's pass has as many rows
        )
        self.width, self.shares = 1, dict[int, float]()
        self.scale = machine.costs.one / ONE  # real seconds of a simulated one
        self.auto = Auto(self.guesser, clock=self.clock) if policy == AUTO else None
        if self.auto is not None:
            self.auto.control = Control(
                self.auto.sources, self.table, 1000, self.auto.objective, self.clock
            )

    @property
    def now(self) -> float:
        """Real seconds."""
        return self.clock.now * self.scale

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.places)

    def add(self, call: Call) -> Served:
        served = Served(call)
        self.queue.append(served)
        return served

    def advance(self, until: float) -> None:
        """Step as long as there is something to do before `until`, in real seconds."""
        while self.load and self.now < until:
            self.step()

    def step(self) -> None:
        """One pass: prompts by slices, a tree of every text that writes."""
        if not self.places:
            self.clock.now = max(self.clock.now, self.queue[0].call.due / self.scale)
        begun = 0
        while self.queue and len(self.places) < self.machine.places:
            if self.places and self.queue[0].call.due > self.now:
                break
            self._begin(self.queue.popleft())
            begun += 1
        readers = [place for place in self.places if place.unread]
        writers = [place for place in self.places if not place.unread]
        slice_ = 0
        if readers:
            slice_ = MOST
            if writers:
                slice_ = self.table.slices.tokens(len(writers), len(readers), 0, MOST)
            slice_ = min(slice_, sum(place.unread for place in readers))
        self.table.plan(len(writers) + slice_, 0)
        requests = [place.request for place in writers]
        trees = self._trees(requests) if requests else []
        nodes = sum(map(len, trees))
        rows = nodes + slice_
        self.steps["drafting" if nodes > len(trees) else "plain"] += bool(trees)
        seconds = self._share(rows) * ONE
        held = sum(place.served.call.prompt + len(place.request.tokens) - 1 for place in writers)
        own = self.machine.own
        more = own.step + own.text * len(self.places) + own.token * held
        self.clock.now += seconds + (more + own.prompt * begun + own.read * slice_) / self.scale
        if self.auto is not None:
            self.table.observe(rows, 0, seconds * self.rng.lognormvariate(0, SPREAD))
        for place, tree in zip(writers, trees, strict=True):
            accept(place.request, tree, place.truth)
            self._end(place)
        for place in readers:
            took = min(place.unread, slice_)
            place.unread, slice_ = place.unread - took, slice_ - took
            if not place.unread:
                place.request.tokens.append(place.truth[1])
                place.served.first = self.now
                self._end(place)

    def _trees(self, requests: Sequence[Writing]) -> list[TokenTree]:
        self.width = len(requests)
        if self.auto is not None and not self.auto.idle(requests):
            return self.auto.propose(requests)
        if isinstance(self.policy, int) and self.policy:
            return self.guesser.propose_within(requests, lambda grown: [True] * len(grown))
        return [TokenTree.chain(request.tokens[-1:]) for request in requests]

    def _begin(self, served: Served) -> None:
        call, self.number = served.call, self.number + 1
        truth = [self.rng.randrange(1, 1000) for _ in range(call.tokens + 1)]
        request = made(self.number, truth)
        self.guesser.truths[self.number] = truth
        if self.policy != 0:
            self.guesser.traces[self.number] = Trace.made(call.kind, len(truth), call.number)
        hit = call.group in self.kept
        served.read = call.prompt - (self.machine.shared if hit else 0)
        self.kept[call.group] = None
        self.kept.move_to_end(call.group)
        if len(self.kept) > self.machine.prefixes:
            self.kept.popitem(last=False)
        self.places.append(Place(served, request, truth, max(1, served.read)))

    def _end(self, place: Place) -> None:
        request = place.request
        if len(request.tokens) < len(place.truth):
            return
        place.served.end = self.now
        self.done.append(place.served)
        self.places.remove(place)
        if self.auto is not None:
            self.auto.release(request)
        del self.guesser.truths[request.key]
        self.guesser.traces.pop(request.key, None)

    def _share(self, rows: int) -> float:
        """Passes over one row that a pass over so many takes."""
        if rows not in self.shares:
            self.shares[rows] = self.machine.costs.seconds(rows) / self.machine.costs.one
        return self.shares[rows]


def taught(costs: PassCosts) -> PassCosts:
    """A table that has seen passes of every size on the simulated clock."""
    table = PassCosts()
    for _ in range(6):
        for rows in ROWS:
            table.observe(rows, 0, costs.seconds(rows) / costs.one * ONE)
    return table


Route = Callable[[Sequence[Replica], Call, random.Random], Replica]


def least(replicas: Sequence[Replica], call: Call, rng: random.Random) -> Replica:
    """The one with least to do, of two at random: what a router asks that does not ask all."""
    pair = rng.sample(replicas, min(2, len(replicas)))
    return min(pair, key=lambda replica: replica.load)


def anyone(replicas: Sequence[Replica], call: Call, rng: random.Random) -> Replica:
    return rng.choice(replicas)


def prefix(replicas: Sequence[Replica], call: Call, rng: random.Random) -> Replica:
    """The one that had the group before, unless it has a batch more to do than another."""
    home = replicas[call.group % len(replicas)]
    other = least(replicas, call, rng)
    return other if home.load > other.load + home.machine.places else home


@dataclass
class Fleet:
    """So many replicas behind one door."""

    machine: Machine
    policy: str | int
    count: int
    route: Route = least
    seed: int = 0
    replicas: list[Replica] = field(init=False)

    def __post_init__(self) -> None:
        self.replicas = [
            Replica(self.machine, self.policy, self.seed + n) for n in range(self.count)
        ]

    def run(self, calls: Sequence[Call]) -> list[Served]:
        """Of calls that wait for none, in the order of arrival."""
        rng = random.Random(self.seed)
        found = []
        for call in calls:
            for replica in self.replicas:
                replica.advance(call.due)
            found.append(self.route(self.replicas, call, rng).add(call))
        for replica in self.replicas:
            replica.advance(float("inf"))
        return found

    def clients(self, count: int, calls: Sequence[Call], apart: float = APART) -> list[Served]:
        """Of so many clients, each of which asks again when it is answered. One replica."""
        (replica,) = self.replicas
        waiting, found = deque(calls), []

        def ask(often: int) -> None:
            for nth in range(min(often, len(waiting))):
                due = replica.now + nth * apart
                found.append(replica.add(replace(waiting.popleft(), due=due)))

        ask(count)
        while replica.load:
            before = len(replica.done)
            replica.step()
            ask(len(replica.done) - before)
        return found
