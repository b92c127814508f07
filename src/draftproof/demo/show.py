"""What `draftproof demo` displays: the race on a terminal, plain text elsewhere, JSON on demand.

Knows the race and the terminal; nothing here is inside a clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from draftproof import SamplingParams
from draftproof.bundled.prompts import PROMPTS
from draftproof.demo.race import HOW, PLAIN, Race, Score, Writer, check, runners, scores
from draftproof.methods import split
from draftproof.models import native_runs

DRAFTED, OWN, GIVEN = "bold green", "", "dim"
NARROWEST = 34  # columns of a panel beside another one; below, panels lie under each other
FRAMES_PER_S = 12
ROUGH = ("auto", "bfloat16", "float16")  # dtypes in which torch's near-ties fall either way


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    methods: Sequence[str] = ("draft",)
    prompts: int = len(PROMPTS)
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    dtype: str = "auto"
    runner: str = "auto"
    threads: int | None = None
    as_json: bool = False


def demo(options: Options, console: Console) -> int:
    """Write every prompt plainly and by each method; 0 if they are identical, else 1.

    Raises `ValueError`, in one sentence, for what cannot run.
    """
    methods = check(options.methods, options.prompts, len(PROMPTS), options.max_tokens)
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seed=options.seed
    )
    prompts = PROMPTS[: options.prompts]
    display = Silent() if options.as_json else Screen(console) if console.is_terminal else Paper()
    races: list[Race] = []
    try:
        with (
            console.status("loading and warming up", spinner="dots") as waiting,
            runners(
                methods,
                params,
                prompts[0],
                runner=options.runner,
                dtype=options.dtype,
                threads=options.threads,
            ) as llms,
        ):
            waiting.stop()
            for number, prompt in enumerate(prompts):
                writers = [Writer(method, llm, prompt, params) for method, llm in llms.items()]
                races.append(Race(prompt, writers))
                display.show(races[-1], f"prompt {number + 1} of {len(prompts)}", number)
                for warning in dict.fromkeys(races[-1].warnings()):
                    print("warning:", " ".join(warning.split()), file=sys.stderr)
    finally:  # interrupted or not: the account of what was written to the end
        races = [race for race in races if race.finished]
        if races:
            account(races, options, console)
    return 0 if all(all(score.identical) for score in scores(races)) else 1


# --- while it is written --------------------------------------------------------------------------


class Silent:
    """Shows nothing while it writes."""

    def show(self, race: Race, title: str, order: int) -> None:
        race.run(together=False, order=order, each_step=lambda: None)


class Paper(Silent):
    """Plain text for pipes and files: each prompt and what was written, when it is done."""

    def show(self, race: Race, title: str, order: int) -> None:
        super().show(race, title, order)
        print(f"--- {title} ---\n{race.prompt}{race.writers[0].text}\n")
        for writer in race.writers:
            at = race.parts_at(writer)
            same = "" if writer.method == PLAIN else f"  identical: {'yes' if at is None else 'no'}"
            print(f"{writer.method:<6}  {writer.tokens_per_s:6.1f} tokens/s{same}")
        print(flush=True)


class Screen:
    """Panels side by side on a terminal; everyone writes at the speed of their own clock."""

    def __init__(self, console: Console) -> None:
        self.console = console
        legend = " ", ("prompt", GIVEN), "   ", ("drafted and accepted", DRAFTED)
        console.print(Text.assemble(*legend, "   ", ("the target's own", OWN)))

    def show(self, race: Race, title: str, order: int) -> None:
        room = max(6, self.console.height - 5)
        drawn = 0.0
        with Live(console=self.console, auto_refresh=False) as live:

            def draw() -> None:
                nonlocal drawn
                if time.monotonic() - drawn > 1 / FRAMES_PER_S:
                    live.update(panels(race, title, self.console.width, room), refresh=True)
                    drawn = time.monotonic()

            try:
                race.run(together=True, order=order, each_step=draw)
            finally:  # the last picture stays: all of it
                live.update(panels(race, title, self.console.width), refresh=True)


def panels(race: Race, title: str, width: int, room: int | None = None) -> RenderableType:
    """The writers of a race beside each other; in `room` lines, the last ones."""
    beside = width // len(race.writers) >= NARROWEST
    if room is not None and not beside:
        room = max(3, room // len(race.writers) - 2)
    texts = [written(race.prompt, writer) for writer in race.writers]
    inner = (width // len(texts) if beside else width) - 4
    lines = [folded(text, inner) for text in texts]
    height = max(map(len, lines)) if beside else 0
    boxes: list[RenderableType] = []
    for writer, each in zip(race.writers, lines, strict=True):
        body = Text("\n").join(each if room is None else each[-room:])
        boxes.append(
            Panel(
                body,
                title=f"[bold]{writer.method}[/]"
                + (f", {title}" if writer.method == PLAIN else ""),
                title_align="left",
                subtitle=f"{writer.tokens_per_s:.0f} tokens/s, {writer.tokens_per_step:.1f} a step",
                subtitle_align="right",
                border_style="green" if writer.finished else "dim",
                height=min(height, room or height) + 2 if beside else None,
                box=box.ROUNDED,
            )
        )
    if not beside:
        return Group(*boxes)
    grid = Table.grid(expand=True)
    for _ in boxes:
        grid.add_column(ratio=1)
    grid.add_row(*boxes)
    return grid


def written(prompt: str, writer: Writer) -> Text:
    """The prompt and each token in the colour of where it came from."""
    text = Text().append(prompt, style=GIVEN)
    for piece, drafted in zip(writer.pieces, writer.request.from_draft, strict=True):
        text.append(piece, style=DRAFTED if drafted else OWN)
    text.expand_tabs(4)
    return text


def folded(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` characters; code is cut where it is full, not between words."""
    folds = [line.divide(range(width, len(line), width)) for line in text.split("\n")]
    return [part for parts in folds for part in parts]


# --- when it is done ------------------------------------------------------------------------------


def account(races: Sequence[Race], options: Options, console: Console) -> None:
    """The table, the verdict, and the sentence that explains it."""
    found = scores(races)
    if options.as_json:
        print(json.dumps(as_dict(races, found, options)), flush=True)
        return
    console.print(table(found))
    same = all(all(score.identical) for score in found)
    style = "bold green" if same else "bold red"
    console.print(Text(f"identical: {'yes' if same else 'no'}", style=style))
    for line in differences(races):
        console.print(line, highlight=False, markup=False)
    console.print(
        sentence(same, options, [score.method for score in found[1:]]),
        highlight=False,
        markup=False,
    )


def table(found: Sequence[Score]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("method")
    for name in ("tokens/s", "tokens/step", "acceptance", "speed-up"):
        made.add_column(name, justify="right")
    made.add_column("identical")
    for score in found:
        plain = score.method == PLAIN
        speed_up = score.tokens_per_s / found[0].tokens_per_s if found[0].tokens_per_s else 0.0
        accepted = "-" if score.acceptance is None else f"{score.acceptance:.0%}"
        made.add_row(
            score.method,
            f"{score.tokens_per_s:.1f}",
            f"{score.tokens_per_step:.2f}",
            accepted,
            "-" if plain else f"{speed_up:.2f}x",
            "-" if plain else " ".join("yes" if same else "no" for same in score.identical),
            style="" if plain else "bold",
        )
    return made


def differences(races: Sequence[Race]) -> list[str]:
    """Where a method parted from plain, a line each."""
    lines = []
    for number, race in enumerate(races, 1):
        for writer in race.writers:
            at = race.parts_at(writer)
            if at is not None:
                ours, plain = ("".join(w.pieces[at : at + 4]) for w in (writer, race.writers[0]))
                lines.append(
                    f"prompt {number}, token {at}: {writer.method} wrote {ours!r}, plain {plain!r}"
                )
    return lines


def sentence(same: bool, options: Options, methods: Sequence[str]) -> str:
    exact = options.runner != "torch" and native_runs()
    if not same and not exact and options.dtype in ROUGH:
        return (
            "Torch rounds half precision differently for one token and for several, so a near-tie "
            "between two tokens fell the other way; --dtype float32 does not have this."
        )
    if not same:
        return (
            "This must never happen: please report it with the command and the lines above, "
            f"seed {options.seed}."
        )
    guessing = " or ".join(HOW[method] for method in split(methods))
    return (
        f"Speculative decoding: {guessing} guesses a few tokens ahead, the target checks them "
        "all in one pass and keeps exactly those that it would have written itself, so the text "
        "cannot change, only the time it takes."
    )


def as_dict(races: Sequence[Race], found: Sequence[Score], options: Options) -> dict[str, Any]:
    """The account as one JSON object."""
    return {
        "identical": all(all(score.identical) for score in found),
        "dtype": options.dtype,
        "temperature": options.temperature,
        "seed": options.seed,
        "methods": [
            {
                "method": score.method,
                "tokens": score.tokens,
                "seconds": score.seconds,
                "tokens_per_s": score.tokens_per_s,
                "steps": score.steps,
                "tokens_per_step": score.tokens_per_step,
                "drafted": score.drafted,
                "accepted": score.accepted,
                "acceptance": score.acceptance,
                "speed_up": score.tokens_per_s / found[0].tokens_per_s
                if found[0].tokens_per_s
                else None,
                "identical": score.identical,
            }
            for score in found
        ],
        "prompts": [
            {
                "prompt": race.prompt,
                "differences": differences([race]),
                "text": {writer.method: writer.text for writer in race.writers},
            }
            for race in races
        ],
    }
