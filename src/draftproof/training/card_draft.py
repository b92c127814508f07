"""The card of a trained draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.training import card
from draftproof.training.draft import DEPTH
from draftproof.training.trainer import State


def write(out: Path, report: Any, state: State, provenance: dict[str, Any]) -> None:
    """See `card.write`."""

    def draw(axes: Any) -> None:
        names = [f"T = {one.temperature:g}" for one in report.served]
        axes.bar(names, [one.alpha for one in report.served], color="tab:blue", label="served")
        predicted = [one.predicted_alpha for one in report.served]
        axes.plot(names, predicted, "D", color="black", label="predicted")
        axes.set_ylabel("acceptance of the first drafted token")
        axes.set_ylim(0, 1)

    card.write(out, report, state, provenance, _text(report, provenance["target"]), draw)


def lines(report: Any) -> list[str]:
    """What the draft gives, a line for each temperature."""
    return [
        f"temperature {one.temperature:g}: predicted tokens/step {one.predicted:.2f}, served "
        f"tokens/step {one.tokens_per_step:.2f}; predicted acceptance {one.predicted_alpha:.1%}, "
        f"served acceptance {one.alpha:.1%} ({one.tokens:,} tokens of held-out text)"
        for one in report.served
    ]


def _text(report: Any, target: str) -> str:
    rows = [
        f"| {one.temperature:g} | {one.alpha:.1%} | {one.predicted_alpha:.1%} "
        f"| {one.tokens_per_step:.2f} | {one.predicted:.2f} |"
        for one in report.served
    ]
    table = "\n".join(
        [
            "| temperature | acceptance | predicted | tokens/step | predicted |",
            "|---" * 5 + "|",
            *rows,
        ]
    )
    if report.exit:
        library, title = "draftproof", f"A head on layer {report.layers} of {target}"
        what = f"{report.parameters:,} parameters, which only early exit reads, distilled."
        made, also = 'EarlyExit(heads="this folder")', ""
    else:
        library, title = "transformers", f"A draft for {target}"
        what = f"{report.layers} layers of width {report.width}, {report.parameters:,} parameters, "
        what += "distilled."
        made = 'DraftModel("this folder")'
        also = "It is an ordinary checkpoint: transformers takes it as `assistant_model` too. "
    return f"""---
library_name: {library}
base_model: {target}
---
# {title}

{what}

{card.using(target, made)}

{also}With chains of \
{DEPTH} drafted tokens and the rejection rule, after prompts that were not trained on, the engine \
accepted this share of first drafted tokens and wrote so many tokens per step:

{table}

PICTURE
{card.ended(report)}
"""
