"""Settings run for real: the same prompts by each in turn with plain decoding, as a user would.

Every text is compared with what was recorded: a setting may change how fast it is written, and
nothing else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof import clock
from draftproof.drafting.adopting import bind
from draftproof.llm import LLM
from draftproof.profiles import Choice
from draftproof.sampling import SamplingParams
from draftproof.tuning.recording import refuse
from draftproof.tuning.records import Text
from draftproof.tuning.replay import groups_of
from draftproof.tuning.sources import MORE
from draftproof.tuning.timing import Loaded

Tick = Callable[[str, float | None], None]


@dataclass
class Trial:
    """What one setting took. seconds: of each round, all groups together; apart: of each group."""

    choice: Choice
    seconds: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    steps: int = 0  # of texts, in one round
    tokens: int = 0
    differing: int = 0  # texts unlike the recorded ones

    def speedup(self, plain: Trial) -> float | None:
        """The median of the rounds."""
        ratios = [a / b for a, b in zip(plain.seconds, self.seconds, strict=False)]
        return statistics.median(ratios) if ratios else None


def run(
    llm: LLM,
    texts: Sequence[Text],
    choices: Sequence[Choice],
    params: SamplingParams,
    load: Loaded,
    batch: int,
    rounds: int,
    tick: Tick,
    until: float,
    finalists: int | None = None,
) -> list[Trial]:
    """Plain decoding first, then the choices; stops behind the round in which time is up.

    until: of `time.monotonic`. One round warms up and is not counted. finalists: behind each round
    the slower half of the choices is left out, as long as more than so many run; None: none is.
    """
    trials = [Trial(choice) for choice in (Choice(), *choices)]
    sides, racing = [], [*range(len(trials))]
    try:
        for trial in trials:
            side = LLM(llm, speculate=None, max_batch=batch)
            sides.append(side)
            proposer = trial.choice.proposer(MORE)
            if proposer is not None:
                bind(proposer, side.runner, load)
                side.engine.use(proposer)
        for turn in range(rounds + 1):
            if turn > 1:
                if time.monotonic() > until:
                    break
                ahead = racing if finalists is None else _ahead(trials, racing, finalists)
                for number in {*racing} - {*ahead}:
                    sides[number].close()
                racing = ahead
            tick(f"writing with the best, round {turn} of {rounds}" if turn else "warming up", None)
            for number in clock.in_turn(racing, turn):
                took = _write(sides[number], trials[number], texts, params, batch)
                if turn:
                    trials[number].seconds.append(sum(took))
                    trials[number].apart += took
    finally:
        for side in sides:
            side.close()
    return trials


def _ahead(trials: Sequence[Trial], racing: Sequence[int], finalists: int) -> list[int]:
    """Plain decoding and the faster half of the choices, or so many of them."""
    plain, choices = trials[0], racing[1:]
    order = sorted(choices, key=lambda number: trials[number].speedup(plain) or 0.0, reverse=True)
    return [0, *sorted(order[: max(finalists, len(choices) // 2)])]


def _write(
    side: LLM, trial: Trial, texts: Sequence[Text], params: SamplingParams, batch: int
) -> list[float]:
    """Seconds of each group."""
    seconds = []
    trial.steps = trial.tokens = trial.differing = 0
    for group in groups_of(len(texts), batch):
        requests = [made for number in group for made in side.prepare(texts[number].asked, params)]
        began = time.perf_counter()
        for _ in side.engine.run(requests):
            pass
        seconds.append(time.perf_counter() - began)
        for number, request in zip(group, requests, strict=True):
            refuse(request)
            trial.steps += request.stats.steps
            trial.tokens += request.stats.tokens
            trial.differing += request.output != texts[number].output
    return seconds
