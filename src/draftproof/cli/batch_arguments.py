"""What `draftproof batch` takes, and the first words of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import LOADING, PROMPTS, option


def batch(
    context: typer.Context,
    lines: Annotated[
        Path, typer.Argument(metavar="INPUT", help="JSON lines in OpenAI's batch format.")
    ],
    target: Annotated[
        str | None,
        option(
            PROMPTS,
            "Hub id, folder, GGUF file, or `bundled`, where lines call it otherwise.",
            "--target",
            metavar="MODEL",
        ),
    ] = None,
    chat_template: options.ChatTemplate = None,
    method: options.Method = None,
    draft: options.Draft = None,
    any_tokenizer: options.AnyTokenizer = False,
    heads: options.Heads = None,
    profile: options.Profile = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    max_draft_nodes: options.MaxDraftNodes = None,
    model_defaults: options.ModelDefaults = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    bad_token_ids: options.BadTokenIds = None,
    min_tokens: options.MinTokens = 0,
    max_tokens: options.MaxTokens = -1,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: options.MaxLength = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    cache_weights: options.CacheWeights = False,
    max_batch: options.MaxBatch = 16,
    kv_memory: options.KvMemory = "auto",
    ray: Annotated[
        int | None,
        option(LOADING, "So many engines, each with its share of a Ray cluster's cores.", min=1),
    ] = None,
    quiet: options.Quiet = False,
    out: options.Out = Path("batch-results"),
) -> int:
    """Answer a file of calls; kill it at any time, run it again, and it goes on.

    The model is the one that the lines name. Written to batch.jsonl in --out, unless that ends in
    .jsonl itself; statistics go to a file beside it. Sampling options are for what lines do not
    say themselves. Exit codes: 0 all answered, 1 a line has an error, 2 could not run to the end,
    130 interrupted: what was finished is kept.
    """
    return launch("batch", locals())
