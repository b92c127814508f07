"""What lies beside trained weights: a model card with a picture, and where they come from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretoken.training.trainer import State

PICTURE = "training.png"
SHOWN = 5  # ranks of a head in the table


def write(out: Path, report: Any, state: State, provenance: dict[str, Any]) -> None:
    """`README.md`, `training.png` where matplotlib is there, and `provenance.json`."""
    drawn = _draw(out / PICTURE, report, state)
    whole = provenance | {"report": asdict(report), "evaluations": state.evaluations}
    (out / "provenance.json").write_text(json.dumps(whole, indent=1) + "\n")
    (out / "README.md").write_text(_text(report, provenance, drawn))


def line(report: Any) -> str:
    """What the heads give, in one line."""
    return (
        f"predicted tokens/step {report.predicted:.2f}, served tokens/step {report.served:.2f} "
        f"(a tree of {report.tree} nodes, greedy, {report.served_tokens:,} tokens of held-out text)"
    )


def _text(report: Any, provenance: dict[str, Any], drawn: bool) -> str:
    ranks = range(SHOWN)
    rows = [
        f"| {k} | " + " | ".join(f"{row[rank]:.1%}" for rank in ranks) + " |"
        for k, row in enumerate(report.accuracies, 1)
    ]
    table = "\n".join(
        [
            "| head | " + " | ".join(f"guess {rank + 1}" for rank in ranks) + " |",
            "|---" * (SHOWN + 1) + "|",
            *rows,
        ]
    )
    picture = f"\n![loss and held-out score over the steps, accuracy of the heads]({PICTURE})\n"
    return f"""---
library_name: foretoken
base_model: {provenance["target"]}
---
# Medusa heads for {provenance["target"]}

{report.heads} heads, {report.parameters:,} parameters: {line(report)}.

```python
import foretoken as ft

llm = ft.LLM({provenance["target"]!r}, speculate=ft.Medusa("this folder"))
```

How often each guess of a head was the token that the target wrote:

{table}
{picture if drawn else ""}
Trained for {report.steps:,} steps on {report.tokens:,} tokens (repetitions counted) in \
{report.seconds / 60:.1f} minutes, until: {report.ended}. `provenance.json` has the command, the \
data's hash, the versions and the machine.
"""


def _draw(file: Path, report: Any, state: State) -> bool:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(state.losses) + 1), state.losses, color="tab:gray", lw=0.8)
    left.set_xlabel("step")
    left.set_ylabel("training loss")
    beside = left.twinx()
    steps = [found["step"] for found in state.evaluations]
    beside.plot(steps, [found["score"] for found in state.evaluations], "o-", color="tab:blue")
    beside.set_ylabel("held-out tokens/step", color="tab:blue")
    for k, row in enumerate(report.accuracies, 1):
        right.plot(
            range(1, len(row) + 1), [sum(row[: i + 1]) for i in range(len(row))], label=f"head {k}"
        )
    right.set_xlabel("guesses")
    right.set_ylabel("share that holds the token")
    right.set_ylim(0, 1)
    right.legend(frameon=False)
    figure.savefig(file, dpi=110)
    return True
