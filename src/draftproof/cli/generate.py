"""`draftproof generate`: from arguments to one call of the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from draftproof import Completion, SamplingParams
from draftproof.cli import defaults, opening, output, prompting, sampling
from draftproof.cli.talk import system_messages
from draftproof.interrupts import INTERRUPTED
from draftproof.request import Request
from draftproof.templates import chat_ids


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    params = _params(vars(given))
    opening.target(given)
    speculate = opening.speculate(given)
    text = prompting.read(given.prompt, given.prompt_file)
    room = {"max_batch": min(given.n, 8), "cache_weights": given.cache_weights}
    with opening.load(given, speculate=speculate, encoders=True, **room) as llm:
        own = defaults.given(given.context)
        params, notes = defaults.completed(llm, params, own, taken=given.model_defaults)
        _tell(*notes, *defaults.idle(params, own))
        talks = given.chat or given.system is not None
        message = {"role": "user", "content": text}
        ids = chat_ids(llm.tokenizer, [*system_messages(given.system), message]) if talks else text
        requests = llm.submit(ids, params, decoder_prompt=given.decoder_prompt)
        interrupted = output.write(llm, requests, quiet=given.as_json)
        template = not talks and bool(getattr(llm.tokenizer, "chat_template", None))
    done = [request.completion() for request in requests]
    if given.as_json:
        print(json.dumps(output.as_dict(given.model, text, done)), flush=True)
    if given.stats:
        console = Console(stderr=True)
        console.print(output.table(done, console.width, requests[0].read))
        for line in filter(None, (output.decided(one.stats) for one in done)):
            console.print(line, markup=False, highlight=False)
    if given.decisions:
        _tell(*(line for one in done for line in one.stats.decisions.changes))
    _tell(*("warning: " + " ".join(text.split()) for one in done for text in one.warnings))
    if interrupted:
        return INTERRUPTED
    if errors := dict.fromkeys(one.error for one in done if one.error is not None):
        raise ValueError("; ".join(errors))
    _tell(*([] if given.as_json else _ends(requests, done, template)))
    return 0


def _params(given: dict[str, Any]) -> SamplingParams:
    """From the command's arguments by name."""
    asked = given["logprobs"] is not None or given["prompt_logprobs"] is not None
    if asked and not given["as_json"]:
        raise ValueError("logprobs are only in the JSON object: add --json")
    return SamplingParams(**sampling.named(given))


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
