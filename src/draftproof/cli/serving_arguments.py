"""What `draftproof serve` takes, and the first words of its help."""

from __future__ import annotations

from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import CLIENTS, option

SERVING = "The server"


def serve(
    context: typer.Context,
    model: options.Model,
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
    rule: options.Rule = "coupled",
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
    host: Annotated[str, option(SERVING, "The address that is listened on.")] = "127.0.0.1",
    port: Annotated[int, option(SERVING, "0 takes a free one.", min=0, max=65535)] = 8000,
    served_names: Annotated[
        list[str] | None,
        option(
            SERVING, "What clients call the model; repeatable.", "--served-name", metavar="NAME"
        ),
    ] = None,
    itl_target: Annotated[
        float | None, option(SERVING, "Milliseconds that prompts of others may hold a text up.")
    ] = None,
    no_prefix_cache: Annotated[
        bool, option(SERVING, "Read every prompt from its beginning.", "--no-prefix-cache")
    ] = False,
    chunk: Annotated[
        str, option(SERVING, "A streamed chunk is what a step wrote, or one token.", metavar="KIND")
    ] = "step",
    keys: Annotated[
        list[str] | None,
        option(
            CLIENTS,
            "A key that lets in; repeatable.",
            "--api-key",
            metavar="KEY",
            envvar="DRAFTPROOF_API_KEY",
        ),
    ] = None,
    share: Annotated[
        bool, option(CLIENTS, "Reuse texts of one key for the others.", "--share")
    ] = False,
    cors: Annotated[
        list[str] | None,
        option(CLIENTS, "A web page of this origin may call; repeatable.", metavar="ORIGIN"),
    ] = None,
    hosts: Annotated[
        list[str] | None,
        option(
            CLIENTS,
            "A name by which this machine alone may call it; repeatable.",
            "--allow-host",
            metavar="NAME",
        ),
    ] = None,
    max_queue: Annotated[int, option(CLIENTS, "Completions that wait, at most.", min=0)] = 256,
    max_queue_tokens: Annotated[
        int, option(CLIENTS, "Tokens of prompts that wait, at most.", min=1)
    ] = 1 << 20,
    timeout: options.Timeout = 3600.0,
    drain: Annotated[
        float, option(CLIENTS, "Seconds that answers have when the server ends.", min=0)
    ] = 30.0,
    quiet: options.Quiet = False,
) -> int:
    """Serve a model to clients of OpenAI, vLLM and llama.cpp.

    Sampling options are for what clients do not say themselves.
    """
    return launch("serve", locals())
