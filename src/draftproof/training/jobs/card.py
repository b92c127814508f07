"""What lies beside trained weights: a model card with a picture, and where they come from."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof import clock
from draftproof.bundled import BUNDLED
from draftproof.out_folders import writing
from draftproof.training.data.rows import Rows
from draftproof.training.trainer import State

if TYPE_CHECKING:
    from draftproof.training.jobs.job import Options

PICTURE = "training.png"


@dataclass(frozen=True)
class Card:
    """What a kind of job has to say; the rest of a card is the same for all."""

    library: str  # that reads the weights
    target: str
    title: str
    summary: str  # of the weights, in a sentence or two
    call: str  # what makes a proposer of them in Python, without "dp."
    caption: str  # of the table
    table: Sequence[Sequence[str]]  # the heading first
    draw: Callable[[Any], None]  # on the axes on the right of the picture


def write(out: Path, card: Card, report: Any, state: State, provenance: dict[str, Any]) -> None:
    """`README.md`, `training.png` where matplotlib is there, and `provenance.json`."""
    record = provenance | {"report": asdict(report), "evaluations": state.evaluations}
    with writing(out / "provenance.json"):
        (out / "provenance.json").write_text(json.dumps(record, indent=1) + "\n")
    picture = f"![loss and held-out score over the steps]({PICTURE})\n\n"
    heading, *rows = (f"| {' | '.join(row)} |" for row in card.table)
    table = "\n".join([heading, "|---" * len(card.table[0]) + "|", *rows])
    text = f"""---
library_name: {card.library}
base_model: {card.target}
---
# {card.title}

{card.summary}

{_use(card)}

{card.caption}

{table}

{picture if _draw(out / PICTURE, state, card.draw) else ""}\
Trained for {report.steps:,} steps on {report.tokens:,} tokens (repetitions counted) in \
{report.seconds / 60:.1f} minutes, until: {report.ended}. `provenance.json` has the command, the \
data's hash, the versions and the machine.
"""
    (out / "README.md").write_text(text, encoding="utf-8")


def _use(card: Card) -> str:
    """How to use it from Python."""
    bundled = card.target == BUNDLED
    return "\n".join(
        [
            "```python",
            "import draftproof as dp",
            *(["from draftproof.bundled import TARGET"] if bundled else []),
            "",
            f"llm = dp.LLM({'TARGET' if bundled else repr(card.target)}, speculate=dp.{card.call})",
            "```",
        ]
    )


def _draw(file: Path, state: State, draw: Callable[[Any], None]) -> bool:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(state.losses) + 1), state.losses, color="tab:gray", lw=0.8)
    left.set_xlabel("step")
    left.set_ylabel("training loss")
    scored = [scores for scores in state.evaluations if "score" in scores]
    beside, steps = left.twinx(), [scores["step"] for scores in scored]
    beside.plot(steps, [scores["score"] for scores in scored], "o-", color="tab:blue")
    beside.set_ylabel("tokens/step expected on held-out data", color="tab:blue")
    draw(right)
    right.legend(frameon=False)
    figure.savefig(file, dpi=110)
    return True


def provenance(options: Options, rows: Rows, held_out: Rows) -> dict[str, Any]:
    """Command, data, versions and machine."""
    return {
        **surroundings("draftproof"),
        "seed": options.seed,
        "target": options.target,
        "data": [str(source) for source in options.data],
        "data_sha256": rows.fingerprint(),
        "train_tokens": rows.tokens,
        "held_out_tokens": held_out.tokens,
    }


def surroundings(program: str) -> dict[str, Any]:
    """Command, date, machine and versions."""
    return {
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": clock.machine(),
        **{name: version(name) for name in ("draftproof", "torch", "transformers")},
    }
