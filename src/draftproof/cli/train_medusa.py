"""`draftproof train medusa`: from arguments to trained heads, their card, and what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from draftproof.cli import training
from draftproof.cli.options import Device, Dtype, Threads, TrustRemoteCode, option
from draftproof.cli.training import DATA, RESULTS, TRAINING
from draftproof.training.jobs.medusa import HeadsJob, Options

HEADS = "The heads"


def medusa(
    model: training.Model,
    data: training.Data,
    out: Annotated[Path, option(RESULTS, "Folder for the heads.")],
    overwrite: training.Overwrite = False,
    held_out: training.HeldOut = None,
    limit: training.Limit = None,
    self_distill: training.SelfDistill = False,
    capture: Annotated[
        bool, option(DATA, "Hidden states once to disk, not every epoch.", "--capture")
    ] = False,
    length: training.Length = None,
    num_heads: Annotated[int, option(HEADS, "How many; 5.")] = 5,
    layers: Annotated[int, option(HEADS, "Blocks of each; 1.")] = 1,
    own_head: Annotated[
        bool, option(HEADS, "A projection for each, not the target's.", "--own-head")
    ] = False,
    start: Annotated[str | None, option(HEADS, "Heads to go on from.", metavar="FOLDER")] = None,
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
    rate: Annotated[
        float | None,
        option(
            TRAINING, "Peak learning rate of the heads; 4.1 / width, 0.01 at most, joint 0.002."
        ),
    ] = None,
    seed: training.Seed = 0,
    resume: training.Resume = False,
    nodes: Annotated[int, option(RESULTS, "Nodes of the tree, at most; 32.")] = 32,
    calibration_tokens: Annotated[
        int, option(RESULTS, "Of the target's own text, for the tree and again to check it; 20000.")
    ] = 20_000,
    export: Annotated[
        list[str] | None, option(RESULTS, "Also write: original, vllm.", metavar="LAYOUT")
    ] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Medusa heads for a target: trained, their tree calibrated, and served once to be sure."""
    options = training.options_of(Options, locals(), "heads")
    return training.run(HeadsJob, options, _accuracies)


def _accuracies(shown: dict[str, float]) -> str:
    shares = (value for name, value in shown.items() if name.startswith("head "))
    return "heads " + " ".join(f"{share:.0%}" for share in shares)
