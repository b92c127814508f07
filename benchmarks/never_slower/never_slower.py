"""Is `speculate="auto"` ever slower than plain decoding? Cell by cell, with intervals.

    python benchmarks/never_slower/never_slower.py

Cells (`cells.py`) are models, what they draft with, texts, batches, temperatures and runners. In
each turn of a cell the same prompts are written plainly, by `auto`, and, every other turn, by
`auto` with `speculate=False`, in random order. Whole calls are timed, prompts included, and every
text must be the plain one. A cell gets turns until its interval is narrow. Turns are appended to a
file, so a run that was cut off goes on where it was. The sources' memory of earlier outputs is
emptied whenever prompts come again.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cells
import forest
import typer
from cells import Cell
from rich.console import Console

import draftproof as dp
from draftproof import clock

FIRST, STEP, MOST = 20, 10, 100  # turns of a cell
NARROW = 0.02  # half an interval
SIDES = ("plain", "auto", "off")

Write = Callable[[list[list[int]], dp.SamplingParams], list[list[int]]]


def main(
    out: Annotated[Path, typer.Option(help="File of turns; those that are there count.")] = Path(
        "bench-results/never_slower.jsonl"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="Part of a cell's name; repeatable, all must match.")
    ] = None,
    max_tokens: int = 128,
    first: Annotated[int, typer.Option(help="Turns of a cell, at least.")] = FIRST,
    most: Annotated[int, typer.Option(help="Turns of a cell, at most.")] = MOST,
    minutes: Annotated[float, typer.Option(help="Of a cell, behind its first turns.")] = 3.0,
    picture: Annotated[Path | None, typer.Option(help="PNG of all intervals.")] = None,
    summary: Annotated[Path | None, typer.Option(help="JSON of all intervals.")] = None,
) -> None:
    """Measure, and print a table of all turns in the file."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells.chosen(only):
        done = forest.read(out).get(cell.name, [])
        began = time.monotonic()
        measuring = Measuring(cell, max_tokens)
        while _goes_on(done, first, most, time.monotonic() - began < 60 * minutes):
            turn = measuring.turn(len(done))
            with out.open("a") as file:
                file.write(json.dumps(turn) + "\n")
            done.append(turn)
        measuring.close()
        if done:
            console.print(forest.line(cell.name, done), highlight=False)
    found = forest.read(out)
    console.print(forest.table(found))
    if summary is not None:
        summary.write_text(json.dumps(forest.summary(found), indent=1) + "\n")
    if picture is not None:
        forest.draw(found, picture)
        console.print("written:", picture)


def _goes_on(done: list[dict[str, Any]], first: int, most: int, in_time: bool) -> bool:
    if len(done) < first:
        return True
    if len(done) >= most or not in_time:
        return False
    return len(done) % STEP > 0 or forest.half(forest.ratios(done, "auto")) > NARROW


class Measuring:
    """One cell; loads nothing before its first turn."""

    def __init__(self, cell: Cell, max_tokens: int) -> None:
        self.cell, self.max_tokens = cell, max_tokens
        self.plain: dp.LLM | None = None

    def close(self) -> None:
        if self.plain is not None:
            self.auto.close()

    def turn(self, number: int) -> dict[str, Any]:
        """Seconds of each side on the prompts of that turn, in an order drawn for it."""
        if self.plain is None:
            self._open(number)
        assert self.plain is not None
        prompts, again = next(self.prompts)
        if again:  # what was remembered of earlier outputs would be the answer
            self.auto.use(self.method)
        sides = SIDES[: 3 - number % 2]
        order = random.Random(f"{self.cell.name} {number}").sample(sides, len(sides))
        seconds, texts, stats = {}, {}, {}
        load = clock.load()
        for side in order:
            llm = self.plain if side == "plain" else self.auto
            params = dp.SamplingParams(
                temperature=self.cell.temperature,
                max_tokens=self.max_tokens,
                seed=number,
                ignore_eos=True,
                speculate=side != "off",
            )
            began = time.perf_counter()
            done = llm.generate(prompts, params)
            seconds[side] = time.perf_counter() - began
            texts[side] = [one.token_ids for one in done]
            stats[side] = [one.stats for one in done]
        differing = sum(
            text != wanted
            for side in order
            for text, wanted in zip(texts[side], texts["plain"], strict=True)
        )
        if differing and self.cell.runner == "native":
            raise SystemExit(f"{self.cell.name}: {differing} texts differ: a defect")
        auto = stats["auto"]
        return {
            "cell": self.cell.name,
            "turn": number,
            "order": order,
            "seconds": seconds,
            "differing": differing,
            "steps": sum(one.steps for one in auto),
            "tokens": sum(one.tokens for one in auto),
            "drafted": sum(one.drafted for one in auto),
            "accepted": sum(one.accepted for one in auto),
            "processor": clock.processor(),
            "load": load,
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }

    def _open(self, number: int) -> None:
        self.plain = cells.writer(self.cell)
        self.method = cells.speculation(self.cell.drafts)
        self.auto = dp.LLM(self.plain, speculate=self.method, max_batch=16)
        self.prompts = cells.turns(self.cell, self.plain)
        warm = dp.SamplingParams(max_tokens=32, ignore_eos=True)
        for llm in (self.plain, self.auto):
            llm.generate([[1, 2, 3, 4]] * self.cell.batch, warm)
        self.auto.use(self.method)
        for _ in range(number):  # those that are measured already
            next(self.prompts)


if __name__ == "__main__":
    typer.run(main)
