"""What every `draftproof train` command shares: options, progress, and how an interrupt ends it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from draftproof import places
from draftproof.bundled import located
from draftproof.cli import opening
from draftproof.interrupts import INTERRUPTED
from draftproof.training.checkpoint import CHECKPOINT
from draftproof.training.data import sources
from draftproof.training.jobs import job, setup
from draftproof.training.trainer import Plan, State

MINUTE = 60.0  # seconds between two lines where there is no terminal
SURE = 10.0, 0.02  # seconds and share of a phase, before which no time that is left is said

Kind = TypeVar("Kind", bound=job.Options)


def options_of(kind: type[Kind], arguments: Mapping[str, Any], bundled: str) -> Kind:
    """The options of a job from the arguments of its command; refuses numbers out of range.

    bundled: what of it `bundled` names as a start, "draft" or "heads".
    """
    names = {field.name for field in fields(kind)}
    given = {name: value for name, value in arguments.items() if name in names}
    for name, value in given.items():
        if type(value) is int and value < 1 and name != "seed":
            raise ValueError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more")
    rate, start = given["rate"], given["start"]
    if rate is not None and not 0 < rate < 1:
        raise ValueError(f"--rate is {rate}, but must be between 0 and 1")
    for name in ("held_out", "export"):
        if name in given:
            given[name] = given[name] or ()
    model = arguments["model"]
    opening.encodes(SimpleNamespace(revision=None, **arguments))  # which refuses what hears
    given |= {
        "target": model,
        "source": located(model, "target"),
        "dtype": given["dtype"] or "auto",
    }
    for name in (model, start):
        if name is not None and places.in_a_file(name):
            raise ValueError(
                f"{name} is a GGUF file, which is not trained on: give the hub id or folder of the "
                "model that it was made from"
            )
    if bundled == "draft":
        places.check(start)
    sources.check([*given["data"], *given.get("held_out", ())])
    given["start"] = None if start is None else located(start, bundled)
    return kind(**given)


class Shown:
    """A bar, and a line for what is worth keeping; asked to stop by a first interrupt.

    Where there is no terminal no bar moves: then a line a minute says how far it is. figures: what
    to show of a step, besides loss and speed.
    """

    def __init__(
        self, bar: Progress, console: Console, figures: Callable[[dict[str, float]], str]
    ) -> None:
        self.bar, self.console, self.figures, self.task = bar, console, figures, TaskID(0)
        self.interrupted = False
        self.steps = False  # whether steps are taken now, after which it can stop
        self.name = ""  # of the phase
        self.first: tuple[float, float] | None = None  # seconds and share, when it first moved
        self.last_line = time.monotonic()

    def phase(self, text: str) -> None:
        """See `Watch.phase`."""
        if not self.console.is_terminal:
            self.line(text)
        if self.bar.tasks:
            self.bar.remove_task(self.task)
        self.name, self.first, self.steps = text, None, text == "training"
        self.task = self.bar.add_task(text, total=1.0, left="")

    def share(self, done: float) -> None:
        """See `Watch.share`."""
        self._moved(done, self.name)

    def line(self, text: str) -> None:
        """See `Watch.line`."""
        self.last_line = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None:
        """See `Watch.step`."""
        rate = state.tokens / max(1e-9, state.seconds)
        text = f"step {state.step} of {plan.steps}  loss {shown['loss']:.3f}"
        text += f"  {self.figures(shown)}  {rate:,.0f} tokens/s"
        if "held-out score" in shown:
            score = f"{shown['held-out score']:.3f} tokens/step expected on held-out data"
            self.line(f"{text}  {score}")
        self._moved(state.step / plan.steps, text)

    def stopped(self) -> bool:
        """See `Watch.stopped`."""
        return self.interrupted

    def _moved(self, done: float, text: str) -> None:
        left = self._left(done)
        self.bar.update(self.task, completed=done, description=text, left=left)
        if not self.console.is_terminal and time.monotonic() - self.last_line >= MINUTE:
            self.line("  ".join(part for part in (text, f"{done:.0%} done", left) if part))

    def _left(self, done: float) -> str:
        """The time that is left of this phase, once it can be told; empty before."""
        now = time.monotonic()
        if self.first is None:
            self.first = now, done
        seconds, share = now - self.first[0], done - self.first[1]
        if seconds < SURE[0] or share < SURE[1] or done >= 1:
            return ""
        left = seconds * (1 - done) / share
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"


def run(
    kind: type[job.Job],
    options: job.Options,
    figures: Callable[[dict[str, float]], str],
) -> int:
    """Runs a job, shown on standard error, and prints what its result gives; the exit code."""
    console = Console(stderr=True, quiet=setup.process() > 0)  # one of several processes reports
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    report: Any = None
    with Progress(*columns, console=console, transient=True) as bar:
        shown = Shown(bar, console, figures)
        try:
            with _interrupts(shown):
                report = kind(options, shown).run()
        except KeyboardInterrupt:
            pass
    if report is None or report.ended == "interrupted":
        if setup.process() == 0:
            print(f"interrupted: {_kept(options.out)}", file=sys.stderr)
        return INTERRUPTED
    if report.process == 0:
        print(*report.lines(), f"written: {options.out}", sep="\n")
    return 0


def _kept(out: Path) -> str:
    if (out / CHECKPOINT).exists():
        return f"a checkpoint is in {out}: go on with --resume"
    if any((out / name).exists() for name in (setup.ANSWERS, *setup.PARTS)):
        return f"what the target wrote so far is in {out}: go on with --resume"
    return "there is no checkpoint yet"


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
