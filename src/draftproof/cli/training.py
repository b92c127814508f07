"""What every `draftproof train` command shares: options, progress, and how an interrupt ends it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from rich.console import Console

from draftproof import places
from draftproof.bundled import located
from draftproof.cli import opening
from draftproof.cli.progress import Running
from draftproof.interrupts import INTERRUPTED
from draftproof.training.checkpoint import CHECKPOINT
from draftproof.training.data import sources
from draftproof.training.jobs import job, setup
from draftproof.training.trainer import Plan, State

SURE_S = 10.0  # seconds of a phase, before which no time that is left is said

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
    if bundled == "draft" and start is not None:
        if places.holds_heads(Path(start)):
            raise ValueError(
                f"{start} holds heads, and no draft: train medusa --start goes on with them"
            )
        places.check(start)
    sources.check([*given["data"], *given.get("held_out", ())])
    given["start"] = None if start is None else located(start, bundled)
    return kind(**given)


class Shown:
    """What is worth keeping as a line, the rest where it runs; asked to stop by a first interrupt.

    figures: what to show of a step, besides loss and speed.
    """

    def __init__(self, running: Running, figures: Callable[[dict[str, float]], str]) -> None:
        self.running, self.figures = running, figures
        self.interrupted = False
        self.steps = False  # whether steps are taken now, after which it can stop
        self.name = ""  # of the phase

    def phase(self, text: str) -> None:
        """See `Watch.phase`; an interrupt that came with the last step, or behind it, ends here."""
        if self.interrupted:  # no other step follows that would, and judging takes minutes
            raise KeyboardInterrupt
        if not self.running.shown:
            self.line(text)
        self.name, self.steps = text, text == "training"
        self.running.begin(text)

    def share(self, done: float) -> None:
        """See `Watch.share`."""
        self.running(self.name, done)

    def line(self, text: str) -> None:
        """See `Watch.line`."""
        self.running.line(text)

    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None:
        """See `Watch.step`."""
        rate = state.tokens / max(1e-9, state.seconds)
        text = f"step {state.step} of {plan.steps}  loss {shown['loss']:.3f}"
        text += f"  {self.figures(shown)}  {rate:,.0f} tokens/s"
        if "held-out score" in shown:
            score = f"{shown['held-out score']:.3f} tokens/step expected on held-out data"
            self.line(f"{text}  {score}")
        self.running(text, state.step / plan.steps)

    def stopped(self) -> bool:
        """See `Watch.stopped`."""
        return self.interrupted


def run(
    kind: type[job.Job],
    options: job.Options,
    figures: Callable[[dict[str, float]], str],
) -> int:
    """Runs a job, shown on standard error, and prints what its result gives; the exit code."""
    console = Console(stderr=True, quiet=setup.process() > 0)  # one of several processes reports
    report: Any = None
    with Running(sure_s=SURE_S, console=console) as running:
        shown = Shown(running, figures)
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
