"""`draftproof train medusa`: from arguments to trained heads, their card, and what they gave."""

from __future__ import annotations

from typing import Annotated

from draftproof.cli import training
from draftproof.cli.options import (
    Device,
    Dtype,
    Export,
    Model,
    Out,
    Threads,
    TrustRemoteCode,
    option,
)
from draftproof.cli.training import DATA, RESULTS, TRAINING
from draftproof.training.jobs.medusa import HeadsJob, Options

HEADS = "The heads"


def medusa(
    model: Model,
    data: training.Data,
    *,
    held_out: training.HeldOut = None,
    limit: training.Limit = None,
    self_distill: training.SelfDistill = False,
    capture: Annotated[
        bool, option(DATA, "Hidden states once to disk, not every epoch.", "--capture")
    ] = False,
    length: training.Length = None,
    num_heads: Annotated[int, option(HEADS, "How many.")] = 5,
    num_layers: Annotated[int, option(HEADS, "Blocks of each.")] = 1,
    own_head: Annotated[
        bool, option(HEADS, "A projection for each, not the target's.", "--own-head")
    ] = False,
    start: training.Start = None,
    quantize: Annotated[
        str | None, option(TRAINING, "int8: the frozen target in half of bf16's memory.")
    ] = None,
    joint: Annotated[
        bool, option(TRAINING, "Medusa-2: the target learns too, by adapters.", "--joint")
    ] = False,
    full: Annotated[bool, option(TRAINING, "With --joint: all of the target.", "--full")] = False,
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
    nodes: Annotated[int, option(RESULTS, "Nodes of the tree, at most.")] = 32,
    calibration_tokens: training.CalibrationTokens = 20_000,
    export: Export = None,
) -> int:
    """Medusa heads for a target: trained, their tree calibrated, and served once to be sure."""
    options = training.options_of(Options, locals(), "heads")
    return training.run(HeadsJob, options, _accuracies)


def _accuracies(shown: dict[str, float]) -> str:
    shares = (value for name, value in shown.items() if name.startswith("head "))
    return "heads " + " ".join(f"{share:.0%}" for share in shares)
