"""What deciding takes: `python benchmarks/never_slower/deciding.py`.

Steps over a runner that computes nothing, of texts that are known beforehand, in microseconds of
the processor beyond those of a plain step: the machine's other programs hardly change them. What
the passes would take is told to the table of costs, so that decisions are those of a machine on
which a pass over one row takes `--pass-ms`. Between two steps the caches are emptied, as weights
do. Drafting itself is counted apart.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import records
import torch
import typer
from rich.console import Console
from rich.table import Table

from draftproof import clock
from draftproof.drafting.base import Drafter
from draftproof.engine import Engine
from draftproof.proposers.auto import Auto
from draftproof.proposers.ngram import NGram
from draftproof.proposers.suffix import SuffixAutomaton
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.runners.costs import PassCosts
from draftproof.runners.curves import ROWS, shipped
from draftproof.sampling import SamplingParams
from draftproof.scheduler import Scheduler

VOCABULARY = 32_000
KNEE = 9.0  # rows at which arithmetic takes as long as reading the weights, on the machine told of
PROMPT = 64  # tokens
HEADINGS = ("text", "batch", "plain", "off", "deciding", "drafting", "tokens/step")
EMPTIES = 1 << 22  # bytes that are walked over between two steps

Text = list[int]


def fresh(rng: random.Random, length: int) -> Text:
    """No token comes twice: nothing can be offered."""
    return rng.sample(range(VOCABULARY), length)


def misleading(rng: random.Random, length: int) -> Text:
    """Pairs of tokens come again, what follows them does not."""
    return [rng.randrange(40) for _ in range(length)]


def repeating(rng: random.Random, length: int) -> Text:
    """The same 60 tokens again and again, one in ten of them another one."""
    once = fresh(rng, 60)
    return [
        once[at % 60] if at < 60 or rng.random() < 0.9 else rng.randrange(VOCABULARY)
        for at in range(length)
    ]


TEXTS: dict[str, Callable[[random.Random, int], Text]] = {
    "nothing offered": fresh,
    "offered, wrong": misleading,
    "offered, right": repeating,
}


class Priced(PassCosts):
    """Passes cost what is told here, whatever they took."""

    def __init__(self, one: float) -> None:
        super().__init__(KNEE)
        self.curve_told = np.interp(np.arange(97), (1, 4, 8, 16, 32, 96), _costs())
        self.told = one
        self.rng = random.Random(0)

    def observe(self, rows: int, attended: int, seconds: float) -> None:
        cost = float(self.curve_told[min(rows, 96)]) * max(1.0, rows / 96)
        super().observe(rows, 0, cost * self.told * self.rng.lognormvariate(0, 0.04))


def _costs() -> list[float]:
    known = dict(zip(ROWS, shipped(KNEE), strict=True))
    return [known[1], known[4], known[8], known[16], known[32], known[64] * 1.5]


@dataclass
class Known:
    """A runner that knows every text, and keeps only lengths."""

    texts: dict[int, Text]
    pass_costs: PassCosts
    vocabulary: int = VOCABULARY
    lengths: dict[int, int] = field(default_factory=dict)

    def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        return [self._output(item) for item in work]

    def _output(self, item: Work) -> Output:
        base = self.lengths[item.key] = self.cached(item.key) + len(item.new)
        if item.tree is None:
            return Output(_EMPTY)
        text = self.texts[item.key]
        last = len(text) - 1
        following = [text[min(base + depth + 1, last)] for depth in item.tree.depths]
        return Output(_EMPTY, argmaxes=following)

    def cached(self, key: int) -> int:
        return self.lengths.get(key, 0)

    def keep(self, key: int, path: Sequence[int]) -> None:
        self.lengths[key] += len(path)

    def crop(self, key: int, length: int) -> None:
        self.lengths[key] = length

    def free(self, key: int) -> None:
        self.lengths.pop(key, None)


_EMPTY = torch.empty(0, 1)


class Ticking:
    """A clock of which every look takes 10 microseconds: decisions are the same in every round."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now


class Timed:
    """What drafts, of which the drafting is counted apart."""

    def __init__(self, drafter: Any, name: str) -> None:
        self.seconds, self._call = 0.0, getattr(drafter, name)
        setattr(drafter, name, self)

    def __call__(self, *given: Any) -> Any:
        began = time.process_time()
        found = self._call(*given)
        self.seconds += time.process_time() - began
        return found


@dataclass
class Took:
    """Seconds of every step, without drafting and of it; tokens that a step wrote."""

    own: list[float]
    drafting: list[float]
    tokens: float


def steps(texts: Sequence[Text], auto: bool, one: float, *, off: bool = False) -> Took:
    """Write texts at once; the steps but the first ones, which read prompts."""
    known, length = dict(enumerate(texts)), len(texts[0]) - PROMPT - 1
    table = Priced(one)
    runner: Any = Known(known, table)
    drafters: list[Drafter] = [NGram(), SuffixAutomaton()] if auto else []
    timed = [Timed(drafter, "propose") for drafter in drafters]
    proposer = Auto(*drafters, clock=Ticking()) if auto else None
    scheduler = Scheduler(len(texts), costs=table)
    engine = Engine(runner, proposer, scheduler=scheduler, vocabulary=VOCABULARY)
    if proposer is not None:
        proposer.bind(runner, None)  # type: ignore[arg-type]
        timed.append(Timed(proposer.control.lookups, "draft"))  # of all look-ups, natively
    params = SamplingParams(max_tokens=length, speculate=not off)
    requests = [Request(key, text[:PROMPT], params, seed=key) for key, text in known.items()]
    for request in requests:
        request.together = requests if len(requests) > 1 else ()
        engine.add(request)
    caches = np.zeros(EMPTIES, np.uint8)
    own, drafting = [], []
    while not any(request.finished for request in requests):
        caches += 1
        before, began = sum(each.seconds for each in timed), time.process_time()
        engine.step()
        whole = time.process_time() - began
        drafting.append(sum(each.seconds for each in timed) - before)
        own.append(whole - drafting[-1])
    for request in requests:
        wanted = known[request.key][: len(request.tokens)]
        assert request.tokens == wanted, "another text"
    tokens = sum(len(request.output) for request in requests) / len(texts) / len(own)
    engine.close()
    return Took(own[1:], drafting[1:], tokens)


def least(rounds: Sequence[Sequence[float]]) -> float:
    """Microseconds of a step: of each the least of all rounds, on average."""
    return 1e6 * statistics.fmean(min(step) for step in zip(*rounds, strict=True))


def main(
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Texts at once.")] = None,
    tokens: Annotated[int, typer.Option(help="Of a text.")] = 512,
    rounds: Annotated[int, typer.Option(help="The least of which counts.")] = 5,
    pass_ms: Annotated[float, typer.Option(help="That a pass over one row takes.")] = 10.0,
    out: Annotated[Path, typer.Option(help="JSON of the table.")] = Path(
        "docs/never_slower/deciding.json"
    ),
) -> None:
    """Measure, print a table and write it."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    table, rows = Table(*HEADINGS), []
    for kind, make in TEXTS.items():
        for batch in batches or [1, 4, 8, 16]:
            rng = random.Random(f"{kind} {batch}")
            texts = [make(rng, PROMPT + tokens + 1) for _ in range(batch)]
            found: dict[str, list[Took]] = {"plain": [], "off": [], "auto": []}
            for _ in range(rounds):
                for side, took in found.items():
                    took.append(steps(texts, side != "plain", pass_ms / 1e3, off=side == "off"))
            own = {side: least([each.own for each in took]) for side, took in found.items()}
            row = {
                "plain": own["plain"],
                "off": own["off"] - own["plain"],
                "deciding": own["auto"] - own["plain"],
                "drafting": least([each.drafting for each in found["auto"]]),
            }
            written = found["auto"][0].tokens
            rows.append({"text": kind, "batch": batch, **row, "tokens_per_step": written})
            table.add_row(kind, str(batch), *(f"{us:.1f}" for us in row.values()), f"{written:.2f}")
    console.print(table)
    given = {"tokens": tokens, "rounds": rounds, "pass_ms": pass_ms}
    records.write(out, given | {"rows": rows})


if __name__ == "__main__":
    typer.run(main)
