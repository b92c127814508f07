"""`draftproof generate`: from arguments to one call of the package."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import draftproof
from draftproof import methods
from draftproof.bundled import BUNDLED, located
from draftproof.cli import options, output
from draftproof.cli.options import LOADING, SAMPLING, option
from draftproof.demo import precision
from draftproof.text import chat_ids

OUTPUT = "Prompt and output"


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Else --prompt-file or stdin.")
    ] = None,
    prompt_file: Annotated[Path | None, option(OUTPUT, "A text file: one prompt.")] = None,
    chat: Annotated[bool, option(OUTPUT, "The prompt is a user's message.", "--chat")] = False,
    stats: Annotated[bool, option(OUTPUT, "A table on stderr at the end.", "--stats")] = False,
    as_json: Annotated[bool, option(OUTPUT, "One JSON object, at the end.", "--json")] = False,
    method: options.Method = None,
    draft: options.Draft = None,
    heads: options.Heads = None,
    num_draft_tokens: options.NumDraftTokens = None,
    min_confidence: options.MinConfidence = None,
    branch: options.Branch = None,
    rule: options.Rule = "coupled",
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: Annotated[float, option(SAMPLING, "-2 to 2, 0 is off.")] = 0.0,
    frequency_penalty: Annotated[float, option(SAMPLING, "-2 to 2, 0 is off.")] = 0.0,
    logit_bias: Annotated[
        list[str] | None, option(SAMPLING, "Token id and bias; repeatable.", metavar="ID=VALUE")
    ] = None,
    bad_token_ids: Annotated[
        list[int] | None,
        option(SAMPLING, "Never written; repeatable.", "--bad-token-id", metavar="ID"),
    ] = None,
    min_tokens: Annotated[int, option(SAMPLING, "No end before these.")] = 0,
    max_tokens: Annotated[int, option(SAMPLING, "256 unless given.")] = 256,
    stop: Annotated[
        list[str] | None, option(SAMPLING, "End before it; repeatable.", metavar="TEXT")
    ] = None,
    stop_token_ids: Annotated[
        list[int] | None,
        option(SAMPLING, "End with it; repeatable.", "--stop-token-id", metavar="ID"),
    ] = None,
    ignore_eos: Annotated[bool, option(SAMPLING, "Write on.", "--ignore-eos")] = False,
    seed: Annotated[int | None, option(SAMPLING, "Drawn and reported unless given.")] = None,
    logprobs: Annotated[int | None, option(SAMPLING, "The best k per token, in --json.")] = None,
    n: Annotated[int, option(SAMPLING, "Completions; several are not streamed.", "-n")] = 1,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: Annotated[int | None, option(LOADING, "Tokens of prompt and output.")] = None,
    threads: options.Threads = None,
    revision: Annotated[str | None, option(LOADING, "Branch, tag or commit on the hub.")] = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Continue a prompt; text is written as it comes."""
    given = locals()
    sampling: dict[str, Any] = {f.name: given[f.name] for f in fields(draftproof.SamplingParams)}
    sampling["logit_bias"] = _biases(logit_bias or ())
    for name in ("bad_token_ids", "stop", "stop_token_ids"):
        sampling[name] = tuple(given[name] or ())
    params = draftproof.SamplingParams(**sampling)
    if logprobs is not None and not as_json:
        raise ValueError("logprobs are only in the JSON object: add --json")
    if revision is not None and (model == BUNDLED or Path(model).is_dir()):
        raise ValueError(f"revision {revision!r} is for models of the hub, and {model!r} is none")
    sources = given_sources(draft, heads)
    speculate = methods.merged(
        method or [],
        sources,
        num_draft_tokens=num_draft_tokens,
        min_confidence=min_confidence,
        branch=branch,
    )
    text = _prompt(prompt, prompt_file)
    with draftproof.LLM(
        located(model, "target"),
        speculate=speculate,
        rule=rule,
        runner=runner,
        dtype=precision(dtype, runner, device) if model == BUNDLED else dtype or "auto",
        device=device,
        max_batch=min(n, 8),
        max_length=max_length,
        threads=threads,
        revision=revision,
        trust_remote_code=trust_remote_code,
    ) as engine:
        message = [{"role": "user", "content": text}]
        requests = engine.submit(chat_ids(engine.tokenizer, message) if chat else text, params)
        interrupted = output.write(engine, requests, quiet=as_json)
        done = [request.completion() for request in requests]
    if as_json:
        print(json.dumps(output.as_dict(model, text, done)), flush=True)
    if stats:
        Console(stderr=True).print(output.table(done))
    for one in done:
        for warning in one.warnings:
            print("warning:", " ".join(warning.split()), file=sys.stderr)
    if interrupted:
        return 130
    if errors := dict.fromkeys(one.error for one in done if one.error is not None):
        raise ValueError("; ".join(errors))
    return 0


def given_sources(draft: str | None, heads: str | None) -> dict[str, str | None]:
    """What methods are given, by its kind; `bundled` is located."""
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


def _prompt(prompt: str | None, file: Path | None) -> str:
    """The one prompt, exactly as it stands in its source."""
    if prompt is not None and file is not None:
        raise ValueError("a prompt and --prompt-file are both given: drop one")
    try:
        if file is not None:
            text = file.read_bytes().decode()
        elif prompt is not None:
            text = os.fsencode(prompt).decode()
        elif sys.stdin is None or sys.stdin.isatty():
            raise ValueError("no prompt: give it as an argument, --prompt-file or standard input")
        else:
            text = sys.stdin.buffer.read().decode()
    except OSError as error:
        raise ValueError(f"cannot read the prompt file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt is not UTF-8 text (byte {error.start})") from error
    if not text:
        raise ValueError("the prompt is empty: write something to continue")
    return text
