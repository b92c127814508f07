"""What every `draftproof train` command shares: options, progress, and how an interrupt ends it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from draftproof.bundled import located
from draftproof.cli.options import option
from draftproof.training import prepare
from draftproof.training.files import CHECKPOINT
from draftproof.training.trainer import Plan, State

DATA, TRAINING, RESULTS = "The data", "Training", "Results"

Target = Annotated[str, typer.Argument(help="Hub id, folder, or `bundled`.")]
Data = Annotated[
    list[str], option(DATA, "Text, JSON lines, a folder, or a data set's name; repeatable.")
]
HeldOut = Annotated[
    list[str] | None, option(DATA, "What it is judged on; a twentieth of the data unless given.")
]
Limit = Annotated[int | None, option(DATA, "So many tokens of it.")]
SelfDistill = Annotated[
    bool, option(DATA, "The target writes the answers itself.", "--self-distill")
]
Length = Annotated[int | None, option(DATA, "Tokens of a row; 512 or what there is.")]
Steps = Annotated[
    int | None, option(TRAINING, "At most; two epochs and 300 at least unless given.")
]
Rows = Annotated[int | None, option(TRAINING, "Rows of a step; about 8,192 tokens.")]
Accumulate = Annotated[int, option(TRAINING, "Passes that a step is made of; 1.")]
Seed = Annotated[int, option(TRAINING, "Of the order, and of what is drawn.")]
Resume = Annotated[bool, option(TRAINING, "Go on from the checkpoint in --out.", "--resume")]


Chosen = TypeVar("Chosen", bound=prepare.Options)


def chosen(made: type[Chosen], given: Mapping[str, Any], kind: str) -> Chosen:
    """The options of a training from the arguments of its command; refuses numbers out of range.

    kind: of what is bundled, if training starts from that.
    """
    found = {field.name: given[field.name] for field in fields(made) if field.name in given}
    for name, value in found.items():
        if type(value) is int and value < 1 and name != "seed":
            raise ValueError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more")
    rate, start = given["rate"], given["start"]
    if rate is not None and not 0 < rate < 1:
        raise ValueError(f"--rate is {rate}, but must be between 0 and 1")
    for name in ("held_out", "export"):
        if name in found:
            found[name] = found[name] or ()
    found["source"] = located(given["target"], "target")
    found["start"] = None if start is None else located(start, kind)
    found["dtype"] = given["dtype"] or "auto"
    return made(**found)


class Shown:
    """A bar, and a line for what is worth keeping; asked to stop by a first interrupt.

    told: what to tell of a step, besides loss and speed.
    """

    def __init__(
        self, bar: Progress, console: Console, told: Callable[[dict[str, float]], str]
    ) -> None:
        self.bar, self.console, self.told, self.task = bar, console, told, TaskID(0)
        self.interrupted = False
        self.steps = False  # whether steps are taken now, after which it can stop

    def phase(self, text: str) -> None:
        if not self.console.is_terminal:  # a log, in which no bar moves
            self.line(text)
        if self.bar.tasks:
            self.bar.remove_task(self.task)
        self.task, self.steps = self.bar.add_task(text, total=1.0), text == "training"

    def share(self, done: float) -> None:
        self.bar.update(self.task, completed=done)

    def line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None:
        rate = state.tokens / max(1e-9, state.seconds)
        text = (
            f"step {state.step}  loss {shown['loss']:.3f}  {self.told(shown)}  {rate:,.0f} tokens/s"
        )
        self.bar.update(self.task, completed=state.step / plan.steps, description=text)
        if "held-out score" in shown:
            self.line(f"{text}  held-out tokens/step {shown['held-out score']:.3f}")

    def stopped(self) -> bool:
        return self.interrupted


def watched(
    work: Callable[[Shown], Any],
    told: Callable[[dict[str, float]], str],
    lines: Callable[[Any], list[str]],
    out: Path,
) -> int:
    """Does `work`, shown on standard error, and prints `lines` of its report; the exit code."""
    console = Console(stderr=True, quiet=prepare.process() > 0)  # of several processes one tells
    columns = (TextColumn("{task.description}"), BarColumn())
    found = None
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        shown = Shown(bar, console, told)
        try:
            with _interrupts(shown):
                found = work(shown)
        except KeyboardInterrupt:
            pass
    if found is None or found.ended == "interrupted":
        kept = (out / CHECKPOINT).exists()
        told_of = (
            f"a checkpoint is in {out}: go on with --resume" if kept else "nothing was trained"
        )
        if prepare.process() == 0:
            print(f"interrupted: {told_of}", file=sys.stderr)
        return 130
    if found.process == 0:
        print(*lines(found), f"written: {out}", sep="\n")
    return 0


@contextmanager
def _interrupts(shown: Shown) -> Iterator[None]:
    """The first interrupt between steps asks for a checkpoint; any other is an interrupt."""

    def ask(number: int, frame: FrameType | None) -> None:
        if shown.interrupted or not shown.steps:
            raise KeyboardInterrupt
        shown.interrupted = True
        shown.line("stopping after this step, with a checkpoint (once more: at once)")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
