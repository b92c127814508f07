"""The card of trained heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.training import card
from draftproof.training.trainer import State

SHOWN = 5  # guesses of a head in the table


def write(out: Path, report: Any, state: State, provenance: dict[str, Any]) -> None:
    """See `card.write`."""

    def draw(axes: Any) -> None:
        for k, row in enumerate(report.accuracies, 1):
            sums = [sum(row[: i + 1]) for i in range(len(row))]
            axes.plot(range(1, len(row) + 1), sums, label=f"head {k}")
        axes.set_xlabel("guesses")
        axes.set_ylabel("share that holds the token")
        axes.set_ylim(0, 1)

    card.write(out, report, state, provenance, _text(report), draw)


def lines(report: Any) -> list[str]:
    """What the heads give; what the target is afterwards, if it learnt along."""
    found = [
        f"predicted tokens/step {report.predicted:.2f}, served tokens/step {report.served:.2f} "
        f"(a tree of {report.tree} nodes, greedy, {report.served_tokens:,} tokens of held-out text)"
    ]
    if report.target_loss:
        before, after = report.target_loss
        found.append(
            f"the target's own loss on held-out text: {before:.3f} nats per token before, "
            f"{after:.3f} after"
        )
    return found


def _text(report: Any) -> str:
    target = report.target
    ranks = range(SHOWN)
    rows = [
        f"| {k} | " + " | ".join(f"{row[rank]:.1%}" for rank in ranks) + " |"
        for k, row in enumerate(report.accuracies, 1)
    ]
    names = " | ".join(f"guess {rank + 1}" for rank in ranks)
    table = "\n".join([f"| head | {names} |", "|---" * (SHOWN + 1) + "|", *rows])
    return f"""---
library_name: draftproof
base_model: {target}
---
# Medusa heads for {target}

{report.heads} heads, {report.parameters:,} parameters: {"; ".join(lines(report))}.

{card.using(target, 'Medusa("this folder")')}

How often each guess of a head was the token that the target wrote:

{table}

PICTURE
{card.ended(report)}
"""
