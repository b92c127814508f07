"""What `draftproof export` takes, and the first words of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import PROMPTS, option


def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL",
            help="What `draftproof tune` wrote, or the target: hub id, folder, or `bundled`.",
        ),
    ],
    engine: Annotated[
        str,
        option(PROMPTS, "vllm, sglang, llama.cpp or transformers.", "--for", metavar="ENGINE"),
    ],
    draft: options.Draft = None,
    heads: options.Heads = None,
    profile: options.Profile = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: options.Out = Path("exported"),
) -> int:
    """Write a draft, or heads, so that another engine loads it, with what to tell that engine.

    The draft is the one that a profile chose, or --draft. --dtype is of a GGUF file, for llama.cpp.
    """
    return launch("export", locals())
