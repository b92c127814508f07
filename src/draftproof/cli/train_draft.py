"""`draftproof train draft`: from arguments to a trained draft, its card, and what it gave."""

from __future__ import annotations

from typing import Annotated

from draftproof.cli import training
from draftproof.cli.options import Device, Dtype, Model, Out, Threads, TrustRemoteCode, option
from draftproof.cli.training import TRAINING
from draftproof.training.jobs.draft import DraftJob, Options
from draftproof.training.recipes.draft import LOSSES

DRAFT = "The draft"


def draft(
    model: Model,
    data: training.Data,
    *,
    held_out: training.HeldOut = None,
    limit: training.Limit = None,
    self_distill: training.SelfDistill = False,
    length: training.Length = None,
    size: Annotated[
        str | None,
        option(
            DRAFT,
            "N: so many of the target's layers, evenly; NxW: as many, W wide, random.",
            metavar="N|NxW",
        ),
    ] = None,
    layers: Annotated[
        str | None, option(DRAFT, "Which of the target's layers, from 0.", metavar="0,5,11")
    ] = None,
    exit_layer: Annotated[
        int | None,
        option(DRAFT, "Not a model: a head on that layer of the target, for early exit."),
    ] = None,
    blocks: Annotated[int | None, option(DRAFT, "Of the head of --exit-layer; 4.")] = None,
    start: training.Start = None,
    loss: Annotated[
        str,
        option(TRAINING, "forward-kl, reverse-kl, tv; text: as if there were no target."),
    ] = LOSSES[0],
    on_policy: Annotated[
        float, option(TRAINING, "Share of the steps on what the draft writes.")
    ] = 0.0,
    steps: training.Steps = None,
    rows: training.Rows = None,
    accumulate: training.Accumulate = 1,
    rate: training.Rate = None,
    seed: training.Seed = 0,
    resume: training.Resume = False,
    dtype: Dtype = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Out,
    overwrite: training.Overwrite = False,
    calibration_tokens: training.CalibrationTokens = 20_000,
) -> int:
    """A small model that drafts for a target: distilled, and served once to be sure."""
    options = training.options_of(Options, locals(), "draft")
    return training.run(DraftJob, options, lambda shown: f"agrees {shown['agree']:.0%}")
