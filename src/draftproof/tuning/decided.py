"""The controller's own rule, replayed: the engine itself runs, on a target that knows the texts.

Look-ups look, other sources answer from their records (`replayed`) and take the seconds of the
tables, as passes do; deciding takes what it takes. So `auto` is judged by the decisions that it
makes, at a fraction of their price. Knows no model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from draftproof.engine import Engine
from draftproof.profiles import Choice
from draftproof.proposers.auto import Auto
from draftproof.request import Request
from draftproof.runners.base import EncoderInput, Output, Target, Work
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import attended
from draftproof.sampling import SamplingParams
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from draftproof.tuning.machine import Array, Machine
from draftproof.tuning.records import WIDE, Text
from draftproof.tuning.replay import Steps, Tape, groups_of, replay
from draftproof.tuning.replayed import Clock, Replayed
from draftproof.tuning.sources import LOOK_UPS, MORE, Source
from draftproof.writing import Writing

T = TypeVar("T")
CACHES = 1 << 22  # bytes that are walked over in place of a pass


class Deciding(Auto):
    """`Auto`, which is charged for its own time and not for the time of the replay."""

    def idle(self, requests: Sequence[Writing]) -> bool:
        return self._charged(super().idle, requests)

    def propose(self, requests: Sequence[Writing]) -> list[TokenTree]:
        return self._charged(super().propose, requests)

    def _charged(self, call: Callable[[Sequence[Writing]], T], requests: Sequence[Writing]) -> T:
        assert isinstance(self.clock, Clock)
        self.clock.deciding(True)
        try:
            return call(requests)
        finally:
            self.clock.deciding(False)


class Settled(PassCosts):
    """Costs that learn no more: passes over records take no time."""

    def __init__(self, costs: PassCosts) -> None:
        copies = {id(costs): self}  # what asks these costs for something asks the copy
        vars(self).update(copy.deepcopy(vars(costs), copies))
        self.passes = max(1, self.passes)

    def observe(self, rows: int, attended: float, seconds: float) -> None:
        return


class Known:
    """A target that picks what is written in the texts, which keys number; passes pass time."""

    device, dtype = torch.device("cpu"), torch.float32
    max_length, vocabulary = 1 << 30, (1 << 31) - 1

    def __init__(self, texts: Sequence[Text], machine: Machine, clock: Clock) -> None:
        self.texts, self.machine, self.clock = texts, machine, clock
        self.pass_costs = Settled(machine.passes)
        self._cached = [0] * len(texts)
        self._caches = np.zeros(CACHES, np.uint8)
        self.passes = 0  # behind which something was written

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        self._caches += 1  # a pass leaves little of anything else in them
        rows = np.array([sum(each.rows() for each in work)])
        reading = sum(attended(each.rows(), self._cached[each.key]) for each in work)
        seconds = float(self.machine.seconds(rows, np.array([reading]))[0])
        drafted = sum(each.tree is not None and len(each.tree) > 1 for each in work)
        self.passes += any(each.tree is not None for each in work)
        outputs, right = [], 0
        for each in work:
            self._cached[each.key] += len(each.new)
            picks, accepted = self._picks(each)
            outputs.append(Output(torch.empty(0, 1), argmaxes=picks))
            right += accepted
        self.clock.passed += seconds + float(self.machine.beside(len(work), drafted, right))
        return outputs

    def _picks(self, work: Work) -> tuple[list[int], int]:
        """After the nodes that agree with the text its next token, after others token 0.

        And how many tokens in a row agree.
        """
        if work.tree is None:
            return [], 0
        text = self.texts[work.key]
        at = self._cached[work.key] + 1 - len(text.prompt)
        picks: list[int] = []
        agree: list[int] = []
        for node, parent in enumerate(work.tree.parents):
            after = at if node == 0 else -1
            if node and agree[parent] >= 0 and picks[parent] == work.tree.tokens[node]:
                after = agree[parent] + 1
            agree.append(after)
            picks.append(text.output[after] if 0 <= after < len(text.output) else 0)
        return picks, max(agree) - at

    def cached(self, key: int) -> int:
        return self._cached[key]

    def keep(self, key: int, path: Sequence[int]) -> None:
        self._cached[key] += len(path)

    def crop(self, key: int, length: int) -> None:
        self._cached[key] = length

    def free(self, key: int) -> None:
        self._cached[key] = 0


def decided(
    texts: Sequence[Text],
    choice: Choice,
    owners: Sequence[Source],
    machine: Machine,
    batch: int,
    clock: Clock | None = None,
) -> Steps:
    """What `auto` over the sources does, in batches of so many texts; arrays (1, G).

    Without sources: what plain decoding does. clock: tells what deciding takes; by default what it
    does take of this thread.
    """
    clock, rows = clock or Clock(), []
    target = Known(texts, machine, clock)
    asked = [
        part.proposer(**MORE.get(part.method, {}))
        if part.method in LOOK_UPS
        else Replayed(owner, texts, machine, clock, dict(part.options).get("branch", WIDE))
        for owner, part in zip(owners, choice.parts, strict=True)
    ]
    auto = Deciding(*asked, clock=clock) if asked else None
    if auto is not None:
        auto.bind(target, _none)  # type: ignore[arg-type]
    scheduler = Scheduler(batch, costs=target.pass_costs)
    engine = Engine(target, auto, scheduler=scheduler)
    for group in groups_of(len(texts), batch):
        began, passes = clock.passed, target.passes
        requests = [_request(number, texts[number]) for number in group]
        for _ in engine.run(requests):
            pass
        assert all(request.output == texts[request.key].output for request in requests)
        counts = [request.stats for request in requests]
        rows.append(
            [
                target.passes - passes,
                sum(each.tokens for each in counts),
                sum(each.accepted for each in counts),
                sum(each.drafted for each in counts),
                clock.passed - began,
                sum(each.steps for each in counts),
            ]
        )
    return Steps(*np.array(rows, float).T[:, None])


def unreplayed(tape: Tape, machine: Machine, batch: int) -> Array:
    """(G,) seconds that the engine takes beyond a replay, decoding plainly.

    It reads the prompts of a batch in slices beside texts that write already, so that those end
    earlier, and the last ones write by themselves.
    """
    ran = decided(tape.texts, Choice(), (), machine, batch)
    took: Array = ran.seconds[0] - replay(tape, [Choice()], machine, batch).seconds[0]
    return took


def _none(target: Target, model: object, quantize: str | None = None) -> Target:
    raise ValueError("records load no model")


def _request(key: int, text: Text) -> Request:
    """Greedy: the target's picks are the text, whatever it was sampled at."""
    params = SamplingParams(max_tokens=text.longest)
    read = None if text.reads is None else EncoderInput(text.reads)
    made = Request(key, text.prompt, params, seed=0, encoder_input=read)
    if len(text.output) < text.longest:  # the end of the text was its own
        made.ends = lambda: len(made.output) >= len(text.output)
    return made
