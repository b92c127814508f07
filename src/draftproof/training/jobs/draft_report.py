"""What a trained draft gives, and the card that tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftproof.training.jobs import job
from draftproof.training.jobs.card import Card
from draftproof.training.recipes.draft import DEPTH


@dataclass
class Served:
    """What the engine gave at one temperature, beside what was predicted for the same texts.

    A chain of `DEPTH` tokens, the rejection rule; alpha: acceptance of the first of them.
    """

    temperature: float
    alpha: float
    tokens_per_step: float
    predicted_alpha: float
    predicted: float  # tokens per step
    tokens: int


@dataclass(kw_only=True)
class Report(job.Report):
    """What the draft gives; lies beside it in `provenance.json`."""

    layers: int
    width: int
    parameters: int
    exit: bool  # a head on so many layers of the target
    served: list[Served] = field(default_factory=list)

    def lines(self) -> list[str]:
        """A line for each temperature."""
        return [
            f"temperature {one.temperature:g}: predicted tokens/step {one.predicted:.2f}, served "
            f"tokens/step {one.tokens_per_step:.2f}; predicted acceptance "
            f"{one.predicted_alpha:.1%}, served acceptance {one.alpha:.1%} ({one.tokens:,} tokens "
            "that the target wrote after held-out prompts)"
            for one in self.served
        ]


def card(report: Report, target: str) -> Card:
    """What a reader of its folder is told."""
    judged = report.served
    if report.exit:
        library, title = "draftproof", f"A head on layer {report.layers} of {target}"
        summary = f"{report.parameters:,} parameters, which only early exit reads, distilled."
        call, also = 'EarlyExit(heads="this folder")', ""
    else:
        library, title = "transformers", f"A draft for {target}"
        summary = f"{report.layers} layers of width {report.width}, "
        summary += f"{report.parameters:,} parameters, distilled."
        call = 'DraftModel("this folder")'
        also = "It is an ordinary checkpoint: transformers takes it as `assistant_model` too. "
    caption = (
        f"{also}With chains of {DEPTH} drafted tokens and the rejection rule, after prompts "
        "that were not trained on, the engine accepted this share of first drafted tokens and "
        "wrote so many tokens per step:"
    )
    table = [["temperature", "acceptance", "predicted", "tokens/step", "predicted"]]
    for one in judged:
        shares = [f"{one.alpha:.1%}", f"{one.predicted_alpha:.1%}"]
        steps = [f"{one.tokens_per_step:.2f}", f"{one.predicted:.2f}"]
        table.append([f"{one.temperature:g}", *shares, *steps])

    def draw(axes: Any) -> None:
        names = [f"T = {one.temperature:g}" for one in judged]
        axes.bar(names, [one.alpha for one in judged], color="tab:blue", label="served")
        predicted = [one.predicted_alpha for one in judged]
        axes.plot(names, predicted, "D", color="black", label="predicted")
        axes.set_ylabel("acceptance of the first drafted token")
        axes.set_ylim(0, 1)

    return Card(library, target, title, summary, call, caption, table, draw)
