"""What the commands of `draftproof train` take.

Knows nothing of what a command does: that is imported once its arguments are read, and takes
seconds.
"""

from __future__ import annotations

from typing import Annotated

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import DATA, DRAFT, HEADS, RESULTS, TRAINING, option


def medusa(
    model: options.Model,
    data: options.Data,
    *,
    held_out: options.HeldOut = None,
    limit: options.Limit = None,
    self_distill: options.SelfDistill = None,
    capture: Annotated[
        bool, option(DATA, "Hidden states once to disk, not every epoch.", "--capture")
    ] = False,
    length: options.Length = None,
    num_heads: Annotated[int, option(HEADS, "How many.")] = 5,
    num_layers: Annotated[int, option(HEADS, "Blocks of each.")] = 1,
    own_head: Annotated[
        bool, option(HEADS, "A projection for each, not the target's.", "--own-head")
    ] = False,
    draft_vocabulary: options.DraftVocabulary = None,
    start: options.Start = None,
    quantize: Annotated[
        str | None, option(TRAINING, "int8: the frozen target in half of bf16's memory.")
    ] = None,
    joint: Annotated[
        bool, option(TRAINING, "Medusa-2: the target learns too, by adapters.", "--joint")
    ] = False,
    full: Annotated[bool, option(TRAINING, "With --joint: all of the target.", "--full")] = False,
    steps: options.Steps = None,
    rows: options.Rows = None,
    accumulate: options.Accumulate = 1,
    rate: options.Rate = None,
    seed: options.Seed = 0,
    resume: options.Resume = False,
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: options.Out,
    overwrite: options.Overwrite = False,
    nodes: Annotated[int, option(RESULTS, "Nodes of the tree, at most.")] = 32,
    calibration_tokens: options.CalibrationTokens = 20_000,
    export: options.Export = None,
) -> int:
    """Medusa heads for a target: trained, their tree calibrated, and served once to be sure."""
    return launch("train_medusa", locals())


def draft(
    model: options.Model,
    data: options.Data,
    *,
    held_out: options.HeldOut = None,
    limit: options.Limit = None,
    self_distill: options.SelfDistill = None,
    length: options.Length = None,
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
    draft_vocabulary: options.DraftVocabulary = None,
    start: options.Start = None,
    loss: Annotated[
        str,
        option(TRAINING, "forward-kl, reverse-kl, tv; text: as if there were no target."),
    ] = "forward-kl",
    on_policy: Annotated[
        float, option(TRAINING, "Share of the steps on what the draft writes.")
    ] = 0.0,
    steps: options.Steps = None,
    rows: options.Rows = None,
    accumulate: options.Accumulate = 1,
    rate: options.Rate = None,
    seed: options.Seed = 0,
    resume: options.Resume = False,
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: options.Out,
    overwrite: options.Overwrite = False,
    calibration_tokens: options.CalibrationTokens = 20_000,
) -> int:
    """A small model that drafts for a target: distilled, and served once to be sure."""
    return launch("train_draft", locals())
