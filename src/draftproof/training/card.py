"""What lies beside trained weights: a model card with a picture, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftproof.bundled import BUNDLED
from draftproof.training.trainer import State

PICTURE = "training.png"


def write(
    out: Path,
    report: Any,
    state: State,
    provenance: dict[str, Any],
    text: str,
    draw: Callable[[Any], None],
) -> None:
    """`README.md`, `training.png` where matplotlib is there, and `provenance.json`.

    text: of the card, with PICTURE where the picture goes. draw: on the right of it.
    """
    whole = provenance | {"report": asdict(report), "evaluations": state.evaluations}
    (out / "provenance.json").write_text(json.dumps(whole, indent=1) + "\n")
    shown = f"![loss and held-out score over the steps]({PICTURE})\n"
    drawn = _draw(out / PICTURE, state, draw)
    (out / "README.md").write_text(text.replace("PICTURE\n", shown if drawn else ""))


def using(target: str, made: str) -> str:
    """How to use it from Python."""
    bundled = target == BUNDLED
    return "\n".join(
        [
            "```python",
            "import draftproof as dp",
            *(["from draftproof.bundled import TARGET"] if bundled else []),
            "",
            f"llm = dp.LLM({'TARGET' if bundled else repr(target)}, speculate=dp.{made})",
            "```",
        ]
    )


def ended(report: Any) -> str:
    """How training went, in a sentence or two."""
    return (
        f"Trained for {report.steps:,} steps on {report.tokens:,} tokens (repetitions counted) in "
        f"{report.seconds / 60:.1f} minutes, until: {report.ended}. `provenance.json` has the "
        "command, the data's hash, the versions and the machine."
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
    scored = [found for found in state.evaluations if "score" in found]
    beside, steps = left.twinx(), [found["step"] for found in scored]
    beside.plot(steps, [found["score"] for found in scored], "o-", color="tab:blue")
    beside.set_ylabel("held-out tokens/step", color="tab:blue")
    draw(right)
    right.legend(frameon=False)
    figure.savefig(file, dpi=110)
    return True
