"""`draftproof generate`: from arguments to one call of the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftproof import LLM, Completion, SamplingParams, methods, places
from draftproof.bundled import BUNDLED, located
from draftproof.cli import defaults, options, output, prompting
from draftproof.cli.options import PROMPTS, option
from draftproof.demo import precision
from draftproof.request import Request
from draftproof.text import chat_ids, load_tokenizer


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
    chat: options.Chat = False,
    system: options.System = None,
    method: options.Method = None,
    draft: options.Draft = None,
    any_tokenizer: options.AnyTokenizer = False,
    heads: options.Heads = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
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
    logprobs: options.Logprobs = None,
    n: options.N = 1,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: options.MaxLength = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    stats: options.Stats = False,
    as_json: options.AsJson = False,
) -> int:
    """Continue a prompt; text is written as it comes."""
    params = _params(locals())
    if revision is not None and (model == BUNDLED or Path(model).is_dir()):
        raise ValueError(f"revision {revision!r} is for models of the hub, and {model!r} is none")
    target = located(model, "target")
    places.check(target)
    loading: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    sources: dict[str, Any] = given_sources(draft, heads)
    if any_tokenizer:
        sources = sources | foreign(sources, target, loading)
    tuning = {
        "num_draft_tokens": num_draft_tokens,
        "min_confidence": min_confidence,
        "branch": branch,
    }
    speculate = methods.merged(method or [], sources, **tuning)
    text = prompting.read(prompt, prompt_file)
    with LLM(
        target,
        speculate=speculate,
        rule=rule,
        runner=runner,
        dtype=precision(dtype, runner, device) if model == BUNDLED else dtype or "auto",
        device=device,
        max_batch=min(n, 8),
        max_length=max_length,
        threads=threads,
        **loading,
    ) as llm:
        own = defaults.given(context)
        params, notes = defaults.completed(llm, params, own, taken=model_defaults)
        _tell(*notes)
        talks = chat or system is not None
        ids = _conversation(llm, text, system) if talks else text
        requests = llm.submit(ids, params)
        interrupted = output.write(llm, requests, quiet=as_json)
        template = not talks and bool(getattr(llm.tokenizer, "chat_template", None))
    done = [request.completion() for request in requests]
    if as_json:
        print(json.dumps(output.as_dict(model, text, done)), flush=True)
    if stats:
        console = Console(stderr=True)
        console.print(output.table(done, console.width))
    _tell(*("warning: " + " ".join(text.split()) for one in done for text in one.warnings))
    if interrupted:
        return 130
    if errors := dict.fromkeys(one.error for one in done if one.error is not None):
        raise ValueError("; ".join(errors))
    _tell(*([] if as_json else _ends(requests, done, template)))
    return 0


def _params(given: dict[str, Any]) -> SamplingParams:
    """From the command's arguments by name."""
    if given["logprobs"] is not None and not given["as_json"]:
        raise ValueError("logprobs are only in the JSON object: add --json")
    sampling = {field.name: given[field.name] for field in fields(SamplingParams)}
    sampling["logit_bias"] = _biases(given["logit_bias"] or ())
    for name in ("bad_token_ids", "stop", "stop_token_ids"):
        sampling[name] = tuple(given[name] or ())
    return SamplingParams(**sampling)


def _conversation(llm: LLM, text: str, system: str | None) -> list[int]:
    first = [{"role": "system", "content": system}] if system is not None else []
    return chat_ids(llm.tokenizer, [*first, {"role": "user", "content": text}])


def _tell(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _ends(requests: Sequence[Request], done: Sequence[Completion], template: bool) -> list[str]:
    """What a reader should know of how the texts ended."""
    lines = []
    cut = [
        request
        for request, one in zip(requests, done, strict=True)
        if one.finish_reason == "length" and one.token_ids
    ]
    if cut:
        full = all(len(request.tokens) >= request.max_length for request in cut)
        limit = "the context is full" if full else f"--max-tokens {cut[0].params.max_tokens}"
        lines.append(f"(cut: {limit})")
    if template and requests[0].params.max_tokens and not any(one.text.strip() for one in done):
        lines.append("(nothing was written: the model has a chat template, add --chat)")
    return lines


def foreign(sources: methods.Sources, target: Any, loading: dict[str, Any]) -> dict[str, Any]:
    """The given draft as one with a tokenizer of its own, in place of one that has the target's."""
    if sources["draft"] is None:
        raise ValueError("--any-tokenizer is about a draft: add --draft MODEL")
    own = {"trust_remote_code": loading["trust_remote_code"]}
    tokenizers = (
        load_tokenizer(sources["draft"], None, own),
        load_tokenizer(target, None, loading),
    )
    return {"draft": None, "foreign": (sources["draft"], *tokenizers)}


def given_sources(draft: str | None, heads: str | None) -> dict[str, str | None]:
    """What methods are given, by its kind; `bundled` is located."""
    places.check(draft)
    named = {"draft": draft, "heads": heads}
    return {kind: name if name is None else located(name, kind) for kind, name in named.items()}


def _biases(pairs: Sequence[str]) -> dict[int, float] | None:
    biases: dict[int, float] = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            fresh = int(token), float(value)
        except ValueError:
            raise ValueError(f"logit bias {pair!r} is not ID=VALUE, for example 11=-2.5") from None
        if fresh[0] in biases:
            raise ValueError(f"logit bias of token {fresh[0]} is given twice: drop one")
        biases[fresh[0]] = fresh[1]
    return biases or None
