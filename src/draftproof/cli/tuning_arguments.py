"""What `draftproof tune` takes, and the first words of its help.

Knows nothing of what it does: that is imported once its arguments are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import DRAFTING, SAMPLING, option


def tune(
    context: typer.Context,
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = 12,
    chat: options.Chat = False,
    system: options.System = None,
    draft: options.Drafts = None,
    draft_dtype: Annotated[
        list[str] | None,
        option(DRAFTING, "The drafts in: auto, int8, int4 (native); repeatable.", metavar="NAME"),
    ] = None,
    heads: options.HeadsOfAll = None,
    candidates: Annotated[
        Path | None,
        option(DRAFTING, "A folder of drafts and heads; those that can pay.", metavar="FOLDER"),
    ] = None,
    temperature: Annotated[list[float] | None, option(SAMPLING, "0 is greedy; repeatable.")] = None,
    max_tokens: options.MaxTokens = 128,
    seed: options.Seed = 0,
    batch: options.Batch = None,
    rounds: options.Rounds = 3,
    minutes: Annotated[
        float | None, option(SAMPLING, "Time that it may take; then the best so far.")
    ] = None,
    quick: options.Quick = False,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
    out: options.Out = Path("profile.json"),
) -> int:
    """Find out which drafts, heads and settings pay for a model, and keep it as a profile.

    The answers are written once; every setting is judged by replay, the best are run.
    Written to profile.json in --out, unless that ends in .json itself.
    """
    return launch("tune", locals())
