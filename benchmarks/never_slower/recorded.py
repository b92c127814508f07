"""What `auto` decides, judged without a timing: the controller over recorded texts.

    python benchmarks/never_slower/recorded.py

Texts of a cell (`cells.py`) are written once, with what every source drafts at every position, and
what passes and drafts cost is measured once; both are kept under `--kept`. Then the engine and
`auto` run over them with a clock that ticks the same at every look, and each source by itself, with
each of its settings, is replayed with the same costs.
So a change of the controller is seen without the machine's noise: remove nothing that is kept, and
run it before and after. What deciding takes is what `--look-us` says, and no measurement.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import cells
import records
import typer
from hindsight import Recording
from rich.console import Console
from rich.table import Table

from draftproof import bundled
from draftproof.profiles import Choice
from draftproof.runners.costs import PassCosts, knee_of
from draftproof.tuning.decided import decided, unreplayed
from draftproof.tuning.machine import Drafting, Machine
from draftproof.tuning.records import Text
from draftproof.tuning.replay import Tape, replay
from draftproof.tuning.replayed import Clock
from draftproof.tuning.sources import Source, draft, heads, look_ups
from draftproof.tuning.timing import of_machine

ALL = (1, 2, 3, 4, 6, 8, 12)
CELLS = (
    "smollm2, bfloat16, humaneval, batch 1, T=0",
    "smollm2, bfloat16, mt-bench, batch 1, T=0",
    "bundled, bfloat16, humaneval, batch 1, T=0",
    "bundled + draft, bfloat16, humaneval, batch 1, T=0",
    "bundled + draft, bfloat16, humaneval, batch 1, T=0.7",
)


class Ticking(Clock):
    """Time passes with passes and drafts, and by so many seconds with each look while deciding."""

    def __init__(self, look: float) -> None:
        super().__init__()
        self.look, self.decides = look, False

    def __call__(self) -> float:
        self.passed += self.look * self.decides
        return self.passed

    def deciding(self, begins: bool) -> None:
        self.decides = begins


def given_to(cell: cells.Cell) -> list[Source]:
    """The look-ups, and what the cell drafts with besides."""
    if not cell.drafts:
        return look_ups()
    if cell.drafts == "heads":
        return [*look_ups(), heads(str(bundled.folder("heads")), "bundled", exits=False)]
    return [*look_ups(), draft(str(cells.draft(cell.drafts)), cell.drafts)]


def recorded(cell: cells.Cell, count: int, max_tokens: int, kept: Path) -> list[Text]:
    """The cell's texts and costs, written and measured where they are not kept yet."""
    place = kept / cell.name.replace(", ", "_")
    files = [place / f"{number}.npz" for number in range(count)]
    if not all(file.exists() for file in (*files, place / "machine.json")):
        llm, given = cells.writer(cell), given_to(cell)
        job = Recording(llm, 1, max_tokens, None, lambda text, share: None)
        prompts, pool = list[tuple[list[int], str]](), cells.turns(cell, llm)
        while len(prompts) < count:
            prompts += [(prompt, "all") for prompt in next(pool)[0]]
        texts = job.texts(prompts[:count], given, cell.temperature, float("inf"))
        job.keep(texts, files)
        machine = of_machine(llm, texts, given, job.load, max(ALL))
        told = {"knee": knee_of(llm.runner), **_told(machine)}
        (place / "machine.json").write_text(json.dumps(told) + "\n")
    return [Text.load(file) for file in files]


def _told(machine: Machine) -> dict[str, Any]:
    drafting = {
        name: vars(each) | {"passes": each.passes and each.passes.learnt()}
        for name, each in machine.drafting.items()
    }
    told = {"own": machine.own, "trees": machine.trees, "token": machine.token}
    return told | {"drafting": drafting} | machine.passes.learnt()


def costs(cell: cells.Cell, kept: Path) -> Machine:
    """What `recorded` measured for the cell."""
    told = json.loads((kept / cell.name.replace(", ", "_") / "machine.json").read_text())
    drafting = {
        name: Drafting(
            **each | {"passes": each["passes"] and _passes(told["knee"], each["passes"])}
        )
        for name, each in told["drafting"].items()
    }
    passes = _passes(told["knee"], told)
    return Machine(passes, tuple(told["own"]), drafting, tuple(told["trees"]), told["token"])


def _passes(knee: float, learnt: dict[str, Any]) -> PassCosts:
    """Of a target, or of its draft on the same runner."""
    passes = PassCosts(knee)
    passes.restore(learnt)
    return passes


def judged(
    texts: list[Text], given: list[Source], machine: Machine, batch: int, look: float
) -> dict[str, Any]:
    """Seconds of plain decoding, of the best fixed source and of `auto`; what was best."""
    fixed = [Choice(), *(Choice((part,)) for source in given for part in source.settings())]
    tape = Tape(texts, given)
    more = unreplayed(tape, machine, batch)
    took = replay(tape, fixed, machine, batch, more).seconds.sum(1)
    auto = Choice(tuple(source.part for source in given), decides=True)
    own = decided(texts, auto, given, machine, batch, Ticking(look))
    best = int(took.argmin())
    return {
        "plain": float(took[0]),
        "best": float(took[best]),
        "auto": float(own.seconds.sum()),
        "setting": fixed[best].name,
        "tokens_per_step": float(own.tokens_per_step[0]),
    }


def main(
    names: Annotated[
        list[str] | None, typer.Option("--cell", help="Name of a cell whose texts are taken.")
    ] = None,
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Texts at once.")] = None,
    num_prompts: Annotated[int, typer.Option(help="Of a cell.")] = 24,
    max_tokens: Annotated[int, typer.Option(help="Of a text.")] = 128,
    look_us: Annotated[float, typer.Option(help="Microseconds of a look at the clock.")] = 30.0,
    kept: Annotated[Path, typer.Option(help="Folder of texts and costs.")] = Path("build/recorded"),
    out: Annotated[Path, typer.Option(help="JSON of the table.")] = Path(
        "docs/never_slower/recorded.json"
    ),
) -> None:
    """Judge, print a table and write it."""
    console, rows = Console(), list[dict[str, Any]]()
    table = Table("text", "batch", "of plain", "of the best", "best", "tokens/step")
    for cell in [each for name in names or CELLS for each in cells.chosen([name])]:
        texts = recorded(cell, num_prompts, max_tokens, kept)
        machine, given = costs(cell, kept), given_to(cell)
        for batch in batches or ALL:
            found = judged(texts, given, machine, batch, look_us / 1e6)
            rows.append({"cell": cell.name, "batch": batch, **found})
            plain, best = (found[side] / found["auto"] for side in ("plain", "best"))
            shown = (
                f"{plain:.3f}",
                f"{best:.3f}",
                found["setting"],
                f"{found['tokens_per_step']:.2f}",
            )
            table.add_row(cell.name, str(batch), *shown)
    console.print(table)
    means = [statistics.fmean(r[side] / r["auto"] for r in rows) for side in ("plain", "best")]
    console.print(f"mean: {means[0]:.3f} of plain decoding, {means[1]:.3f} of the best source")
    given = {"look_us": look_us, "max_tokens": max_tokens, "num_prompts": num_prompts}
    records.write(out, given | {"rows": rows})


if __name__ == "__main__":
    typer.run(main)
