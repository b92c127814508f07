"""`auto` against the best fixed setting, found afterwards.

    python benchmarks/never_slower/hindsight.py --only "smollm2, bfloat16, humaneval, batch 1, T=0"

Texts of a cell (`cells.py`) are written once, plainly, and what every source drafts at every
position is kept (`draftproof.tuning`). Then every subset of the sources, each with drafts of 1, 2,
4 and 8 tokens and 1 and 2 branches, is replayed over them with the measured costs of passes and of
drafting. The best three, plain decoding and `auto` write the texts for real, in turn, and every
text must be the recorded one. `auto` is compared with the best of the others, which nobody could
have known beforehand. No side remembers earlier outputs: the rounds write the same texts again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import cells
import forest
import typer
from cells import Cell
from rich.console import Console

import draftproof as dp
from draftproof import bundled, clock
from draftproof.profiles import Choice, Part
from draftproof.tuning import sources, timing, trying
from draftproof.tuning.job import BEST, Job
from draftproof.tuning.replay import Tape, replay
from draftproof.tuning.sources import Source

SIZES = [(length, width) for length in (8, 4, 2, 1) for width in (2, 1)]  # the largest first
# Of a source that is asked for each size by itself; a tree by chance has as many nodes.
SIZED = {
    "ngram": lambda length, width: {"num_draft_tokens": length, "branches": width},
    "suffix": lambda length, width: {"num_draft_tokens": length * width},
    "medusa": lambda length, width: {"nodes": length * width},
}


class Recording(Job):
    """Texts go on behind their ends, as those of `never_slower.py` do."""

    def params(self, temperature: float) -> dp.SamplingParams:
        return replace(super().params(temperature), ignore_eos=True)


def sources_of(cell: Cell) -> list[Source]:
    """The look-ups, and what the cell drafts with besides."""
    found = [_asked("ngram"), _asked("suffix")]
    if cell.drafts == "heads":
        found.append(_asked("medusa", str(bundled.folder("heads"))))
    elif cell.drafts:
        found.append(sources.draft(str(cells.draft(cell.drafts)), cell.drafts))
    return found


def _asked(method: str, model: str | None = None) -> Source:
    parts = [Part(method, tuple(SIZED[method](*size).items()), model) for size in SIZES]
    return Source(method, parts[0], asis=tuple(dict.fromkeys(parts)))


def sized(source: Source, length: int, width: int) -> Part:
    """The source with drafts of that size."""
    if source.grows:
        return source.grown(num_draft_tokens=length, branch=width, min_confidence=0.0)
    options = SIZED[source.method](length, width)
    return Part(source.method, tuple(options.items()), source.part.model)


def settings(given: Sequence[Source]) -> Iterator[Choice]:
    """Every subset with every size."""
    for count in range(1, len(given) + 1):
        for some in combinations(given, count):
            for size in SIZES:
                yield Choice(tuple(sized(source, *size) for source in some))


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Part of a cell's name; repeatable, all must match.")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON of all cells; those there are kept.")] = Path(
        "docs/never_slower/hindsight.json"
    ),
    turns: Annotated[int, typer.Option(help="Calls of a cell's batch that are recorded.")] = 4,
    rounds: Annotated[int, typer.Option(help="In which each side writes them all, at most.")] = 20,
    minutes: Annotated[float, typer.Option(help="Of a cell; no round begins later.")] = 4.0,
    max_tokens: int = 128,
) -> None:
    """Measure, and print a line per cell."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(out.read_text()) if out.exists() else {"cells": {}}
    for cell in cells.chosen(only):
        until = time.monotonic() + 60 * minutes
        found["cells"][cell.name] = measured(cell, turns, rounds, max_tokens, until)
        out.write_text(json.dumps(found, indent=1) + "\n")
        console.print(line(cell.name, found["cells"][cell.name]), highlight=False)


def measured(cell: Cell, turns: int, rounds: int, max_tokens: int, until: float) -> dict[str, Any]:
    """The best settings by replay, and paired ratios of real runs. until: of `time.monotonic`."""
    llm, given = cells.writer(cell), sources_of(cell)
    job = Recording(llm, 1, max_tokens, None, lambda text, share: None)
    pool = cells.turns(cell, llm)
    prompts = [(prompt, "all") for _ in range(turns) for prompt in next(pool)[0]]
    texts = job.texts(prompts, given, cell.temperature, until)
    machine = timing.of_machine(llm, texts, given, job.load, cell.batch)
    choices = [Choice(), *dict.fromkeys(settings(given))]
    steps = replay(Tape(texts, given), choices, machine, cell.batch)
    replayed = dict(zip(choices, map(float, steps.seconds.sum(1)), strict=True))
    best = sorted(choices[1:], key=lambda choice: replayed[choice])[:BEST]
    auto = Choice(tuple(Part(each.method, (), each.part.model) for each in given), decides=True)
    params = job.params(cell.temperature)
    trials = trying.run(
        llm, texts, [*best, auto], params, job.load, cell.batch, rounds, job.tick, until
    )
    if cell.runner == "native" and any(trial.differing for trial in trials):
        raise SystemExit(f"{cell.name}: a text differs: a defect")
    *fixed, own = trials
    fastest = min(fixed, key=lambda trial: statistics.median(trial.seconds))

    def ratio(trial: trying.Trial) -> tuple[float, float, float]:
        return forest.interval([a / b for a, b in zip(trial.apart, own.apart, strict=True)])

    return {
        "best": fastest.choice.name,
        "auto": ratio(fastest),
        "of_plain": ratio(fixed[0]),
        "others": {trial.choice.name: ratio(trial) for trial in fixed},
        "replayed": {choice.name: seconds for choice, seconds in replayed.items()},
        "tokens_per_step": own.tokens / own.steps,
        "differing": sum(trial.differing for trial in trials),
        "texts": len(texts),
        "rounds": len(own.seconds),
        "processor": clock.processor(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def line(name: str, cell: Mapping[str, Any]) -> str:
    """What a cell came to."""
    middle, low, high = cell["auto"]
    return (
        f"{name}: in {cell['rounds']} rounds auto has {middle:.3f} ({low:.3f}-{high:.3f}) of the "
        f"speed of the best fixed setting ({cell['best']}), and {cell['of_plain'][0]:.3f} of plain "
        "decoding's"
    )


if __name__ == "__main__":
    typer.run(main)
