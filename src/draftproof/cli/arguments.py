"""What each command takes, and the first words of its help.

Knows nothing of what a command does: that is imported once its arguments are read, and takes
seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.launch import launch
from draftproof.cli.options import DRAFTING, LOADING, OUTPUT, PROMPTS, SAMPLING, option


def generate(
    context: typer.Context,
    model: options.Model,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Else --prompt-file; - or nothing: standard input."),
    ] = None,
    prompt_file: Annotated[
        Path | None, option(PROMPTS, "A text file: one prompt.", metavar="FILE")
    ] = None,
    decoder_prompt: Annotated[
        str | None,
        option(PROMPTS, "What an encoder-decoder's answer goes on from.", metavar="TEXT"),
    ] = None,
    chat: options.Chat = False,
    system: options.System = None,
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
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    bad_token_ids: options.BadTokenIds = None,
    min_tokens: options.MinTokens = 0,
    max_tokens: options.MaxTokens = 256,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    grammar: options.GrammarText = None,
    choice: options.Choice = None,
    prediction: options.Prediction = None,
    logprobs: options.Logprobs = None,
    prompt_logprobs: options.PromptLogprobs = None,
    n: options.N = 1,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: options.MaxLength = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    cache_weights: options.CacheWeights = False,
    stats: options.Stats = False,
    decisions: options.Decisions = False,
    as_json: options.AsJson = False,
) -> int:
    """Continue a prompt; text is written as it comes."""
    return launch("generate", locals())


def chat(
    context: typer.Context,
    model: options.Model,
    system: options.System = None,
    chat_template: options.ChatTemplate = None,
    method: options.Method = None,
    draft: options.Draft = None,
    any_tokenizer: options.AnyTokenizer = False,
    heads: options.Heads = None,
    profile: options.Profile = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    rule: options.Rule = "coupled",
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    max_tokens: options.MaxTokens = 512,
    stop: options.Stop = None,
    seed: options.Seed = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: options.MaxLength = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    cache_weights: options.CacheWeights = False,
    colour_drafts: Annotated[
        bool, option(OUTPUT, "Colour each token by what drafted it.", "--colour-drafts")
    ] = False,
    quiet: options.Quiet = False,
) -> int:
    """Talk with a model; /help lists what can be said besides messages.

    It samples as the model's own generation_config says, unless options say otherwise.
    """
    return launch("chat", locals())


def bench(
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = None,
    chat: options.Chat = False,
    system: options.System = None,
    method: options.Method = None,
    draft: options.Draft = None,
    heads: options.Heads = None,
    profile: options.Profile = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    against: Annotated[str, option(DRAFTING, "Peers, or '' for none.")] = "transformers",
    temperature: Annotated[list[float] | None, option(SAMPLING, "0 is greedy; repeatable.")] = None,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    batch: options.Batch = None,
    rounds: options.Rounds = 5,
    inflate: Annotated[
        str | None,
        option(LOADING, "Give the model the cost of this shape, same output.", metavar="SHAPE"),
    ] = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    explain: Annotated[
        bool, option(OUTPUT, "Why: what passes cost, what was predicted.", "--explain")
    ] = False,
    out: options.Out = Path("bench-results"),
    export: options.Export = None,
) -> int:
    """Compare draftproof with what you use today, on your model: same weights, same prompts."""
    return launch("bench", locals())


def certify(
    context: typer.Context,
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = 6,
    chat: options.Chat = False,
    system: options.System = None,
    method: options.Method = None,
    draft: options.Draft = None,
    heads: options.Heads = None,
    num_draft_tokens: options.NumDraftTokens = None,
    rule: Annotated[
        list[str] | None, option(DRAFTING, "coupled, rejection, or typical (lossy).")
    ] = None,
    max_tokens: options.MaxTokens = 48,
    seed: options.Seed = 0,
    runs: Annotated[int, option(SAMPLING, "Runs of each test of law.")] = 1000,
    quick: options.Quick = False,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
    out: options.Out = Path(),
) -> int:
    """Prove on your model that drafting changes nothing.

    Exit codes: 0 identical, 1 a defect, 3 near-ties, 4 not exercised (nothing was drafted),
    130 interrupted: what was finished is shown.
    All methods that can run unless --method; coupled and rejection unless --rule
    (typical is lossy: there is nothing to certify); held-out code unless --prompts.
    """
    return launch("certify", locals())


def quality(
    model: options.Model,
    prompts: options.Prompts = None,
    num_prompts: options.NumPrompts = 8,
    chat: options.Chat = False,
    text: Annotated[
        Path | None,
        option(PROMPTS, "A text file; prose that comes along unless given.", metavar="FILE"),
    ] = None,
    num_tokens: Annotated[
        int | None, option(PROMPTS, "At most so many are read; all, but 8,192 of a text.")
    ] = None,
    window: Annotated[int, option(PROMPTS, "Tokens that are read behind one another.")] = 512,
    max_tokens: options.MaxTokens = 64,
    runner: options.Runner = "auto",
    dtype: options.Dtypes = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
    out: options.Out = Path("quality-results"),
) -> int:
    """Measure what a precision costs: the model in it beside itself in float32.

    Both read the same text, and write greedy texts: perplexity, divergence, memory and speed.
    Unless --dtype lists others, bfloat16 and int8 are measured.
    """
    return launch("quality", locals())


def convert(
    model: options.Model,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: options.Out = Path(),
) -> int:
    """Write a model as a GGUF file, which llama.cpp reads too; in int4 unless --dtype.

    It is named MODEL.DTYPE.gguf, unless --out ends in .gguf itself.
    Written in float32, float16, bfloat16, int8 or int4, and in no other precision.
    """
    return launch("convert", locals())


def info(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Tell what passes of this model cost.")
    ] = None,
    draft: options.Draft = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: options.MaxLength = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    measure: Annotated[
        bool, option(OUTPUT, "Measure what its passes cost, for later runs too (3 s).", "--measure")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Tell versions, devices, what is available or why not, and what passes cost.

    With a draft: whether its vocabulary is the model's, and from which acceptance on it pays.
    """
    return launch("info", locals())


def demo(
    context: typer.Context,
    num_prompts: options.NumPrompts = None,
    method: options.Method = None,
    temperature: options.Temperature = 0.0,
    max_tokens: options.MaxTokens = 128,
    seed: options.Seed = 0,
    quick: options.Quick = False,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> int:
    """Watch the bundled models write the same Python code, plainly and faster."""
    return launch("demo", locals())
