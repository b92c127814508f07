"""`foretoken train`: from arguments to trained heads, their card, and what they gave."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from foretoken import checkpoints
from foretoken.cli import options
from foretoken.cli.options import option
from foretoken.demo import located
from foretoken.runners import loading
from foretoken.training import card, run
from foretoken.training.prepare import Options
from foretoken.training.trainer import Plan, State

DATA, HEADS, TRAINING, RESULTS = "The data", "The heads", "Training", "Results"
LAYOUTS = ("original", "vllm")

train = typer.Typer(name="train", help="Train what drafts for a model.", no_args_is_help=True)


class Shown:
    """A bar, and a line for what is worth keeping; asked to stop by a first interrupt."""

    def __init__(self, bar: Progress, console: Console) -> None:
        self.bar, self.console, self.task = bar, console, TaskID(0)
        self.interrupted = False
        self.phase("loading")

    def phase(self, text: str) -> None:
        self.bar.remove_task(self.task) if self.bar.tasks else None
        self.task = self.bar.add_task(text, total=1.0)

    def share(self, done: float) -> None:
        self.bar.update(self.task, completed=done)

    def line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def step(self, state: State, shown: dict[str, float], plan: Plan) -> None:
        rate = state.tokens / max(1e-9, state.seconds)
        heads = " ".join(f"{v:.0%}" for name, v in shown.items() if name.startswith("head "))
        text = f"step {state.step}  loss {shown['loss']:.3f}  heads {heads}  {rate:,.0f} tokens/s"
        self.bar.update(self.task, completed=state.step / plan.steps, description=text)
        if "held-out score" in shown:
            self.line(f"{text}  held-out tokens/step {shown['held-out score']:.3f}")

    def stopped(self) -> bool:
        return self.interrupted


@contextmanager
def _interrupts(shown: Shown) -> Iterator[None]:
    """The first interrupt asks for a checkpoint; the second one is an interrupt."""

    def ask(number: int, frame: FrameType | None) -> None:
        if shown.interrupted:
            raise KeyboardInterrupt
        shown.interrupted = True
        shown.line("stopping after this step, with a checkpoint (once more: at once)")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@train.command()
def medusa(
    target: Annotated[str, typer.Argument(help="Hub id, folder, or `bundled`.")],
    data: Annotated[
        list[str],
        option(DATA, "Text, JSON lines, a folder, or a data set's name; repeatable."),
    ],
    out: Annotated[Path, option(RESULTS, "Folder for the heads.")],
    held_out: Annotated[
        list[str] | None,
        option(DATA, "What it is judged on; a twentieth of the data unless given."),
    ] = None,
    limit: Annotated[int | None, option(DATA, "So many tokens of it.")] = None,
    self_distill: Annotated[
        bool, option(DATA, "The target writes the answers itself.", "--self-distill")
    ] = False,
    capture: Annotated[
        bool, option(DATA, "Hidden states once to disk, not every epoch.", "--capture")
    ] = False,
    length: Annotated[int | None, option(DATA, "Tokens of a row; 512 or what there is.")] = None,
    heads: Annotated[int, option(HEADS, "How many; 5.")] = 5,
    layers: Annotated[int, option(HEADS, "Blocks of each; 1.")] = 1,
    own_head: Annotated[
        bool, option(HEADS, "A projection for each, not the target's.", "--own-head")
    ] = False,
    start: Annotated[str | None, option(HEADS, "Heads to go on from.", metavar="HEADS")] = None,
    joint: Annotated[
        bool, option(TRAINING, "Medusa-2: the target learns too, by adapters.", "--joint")
    ] = False,
    full: Annotated[bool, option(TRAINING, "With --joint: all of the target.", "--full")] = False,
    steps: Annotated[
        int | None, option(TRAINING, "At most; two epochs and 300 at least unless given.")
    ] = None,
    rows: Annotated[int | None, option(TRAINING, "Rows of a step; about 8,192 tokens.")] = None,
    accumulate: Annotated[int, option(TRAINING, "Passes that a step is made of; 1.")] = 1,
    rate: Annotated[
        float | None, option(TRAINING, "Peak learning rate of the heads; 0.001, joint 0.002.")
    ] = None,
    seed: Annotated[int, option(TRAINING, "Of the order, and of dropout.")] = 0,
    resume: Annotated[
        bool, option(TRAINING, "Go on from the checkpoint in --out.", "--resume")
    ] = False,
    nodes: Annotated[int, option(RESULTS, "Nodes of the tree, at most; 32.")] = 32,
    calibration_tokens: Annotated[
        int, option(RESULTS, "Of the target's own text, for the tree and again to check it; 20000.")
    ] = 20_000,
    export: Annotated[
        list[str] | None, option(RESULTS, "Also write: original, vllm.", metavar="LAYOUT")
    ] = None,
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Medusa heads for a target: trained, their tree calibrated, and served once to be sure."""
    for name, value in {
        "heads": heads,
        "layers": layers,
        "steps": steps,
        "rows": rows,
        "accumulate": accumulate,
        "limit": limit,
        "nodes": nodes,
        "calibration-tokens": calibration_tokens,
    }.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}, but must be 1 or more")
    if rate is not None and not 0 < rate < 1:
        raise ValueError(f"--rate is {rate}, but must be between 0 and 1")
    if full and not joint:
        raise ValueError("--full is for --joint: add that")
    if joint and capture:
        raise ValueError("--joint changes the states that --capture keeps: drop one")
    for name in export or ():
        if name not in LAYOUTS:
            raise ValueError(f"export {name!r} is unknown: use {', '.join(LAYOUTS)}")
    chosen = Options(
        target=target,
        source=located(target, "target"),
        data=data,
        out=out,
        held_out=held_out or (),
        heads=heads,
        layers=layers,
        own_head=own_head,
        start=start,
        joint=joint,
        full=full,
        steps=steps,
        rows=rows,
        length=length,
        rate=rate,
        accumulate=accumulate,
        limit=limit,
        self_distill=self_distill,
        capture=capture,
        resume=resume,
        calibration_tokens=calibration_tokens,
        nodes=nodes,
        seed=seed,
        dtype=dtype or "auto",
        device=device,
        threads=threads,
        trust_remote_code=trust_remote_code,
    )
    console, columns = Console(stderr=True), (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        shown = Shown(bar, console)
        with _interrupts(shown):
            found = run.heads(chosen, shown)
    if found.ended == "interrupted":
        print(f"a checkpoint is in {out}: go on with --resume", file=sys.stderr)
        return 130
    if found.process:
        return 0
    _export(chosen, export or ())
    print(card.line(found))
    print(f"written: {out}")
    return 0


def _export(chosen: Options, layouts: list[str] | tuple[()]) -> None:
    """The heads as others read them; where they share the LM head they are given it."""
    for name in layouts:
        made = checkpoints.load(chosen.out)
        target = loading.load(chosen.source, device=loading.pick_device("cpu"))
        weight = target.get_output_embeddings().weight.detach()
        writer = {"original": checkpoints.export_original, "vllm": checkpoints.export_vllm}[name]
        writer(chosen.out / name, made, weight)
