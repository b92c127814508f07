"""A body's parameters become `SamplingParams`; limits of the server are kept here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from draftproof.sampling import SamplingParams
from draftproof.server import grammars
from draftproof.server.bodies import ChatBody, MaxNodes, TextBody, Written
from draftproof.server.refusals import OURS, bad, of_value
from draftproof.server.settings import Limits

NAMES = {each.name for each in fields(SamplingParams)} & Written.model_fields.keys()
NAMES -= {"grammar"}  # of a body: llama.cpp's
ID = re.compile("0|-?[1-9][0-9]{0,18}")  # one spelling for each: a second would be lost
SHORT = 16  # tokens of a completion that nobody gave a length, as OpenAI's


def of_chat(body: ChatBody, defaults: Mapping[str, Any], limits: Limits) -> SamplingParams:
    """Raises `Refused`."""
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    given: dict[str, Any] = {"max_tokens": None, **defaults}
    over = {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    called = OURS | {"logprobs": "top_logprobs"}
    if body.length is not None:
        over["max_tokens"] = body.length
    if body.max_completion_tokens is not None:
        called["max_tokens"] = "max_completion_tokens"
    return _made(body, given, over, limits, called)


def of_text(body: TextBody, defaults: Mapping[str, Any], limits: Limits) -> SamplingParams:
    """Raises `Refused`. With echo and logprobs the prompt's are asked for too."""
    given: dict[str, Any] = {"max_tokens": SHORT, **defaults}
    over = {"logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        over["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        if body.max_tokens == 0:  # what is scored has to run
            over["max_tokens"] = 1
    return _made(body, given, over, limits)


def _made(
    body: Written,
    given: dict[str, Any],
    over: Mapping[str, Any],
    limits: Limits,
    called: Mapping[str, str] = OURS,
) -> SamplingParams:
    """given: what the body's own fields replace; over: what replaces these.

    called: see `of_value`.
    """
    own = {name: value for name in NAMES if (value := getattr(body, name)) is not None}
    bias, resume = own.pop("logit_bias", None), own.pop("resume", None)
    own.pop("prediction", None)
    given = {**given, **own, **over}
    _check(body, limits)
    if body.prediction is not None:
        given["prediction"] = body.prediction.text
    if bias is not None:
        given["logit_bias"] = _biases(bias)
    if resume is not None:
        given["resume"] = resume.token_ids
        if resume.seed is not None:
            given["seed"] = resume.seed
        if body.seed not in (None, given.get("seed")):
            raise bad(f"seed is {body.seed}, and that of resume {resume.seed}: drop one", "seed")
    if (grammar := grammars.of_body(body)) is not None:
        given["grammar"] = grammar
    drafting = body.speculative
    if isinstance(drafting, MaxNodes):
        given["max_draft_nodes"] = drafting.max_nodes
    elif drafting is not None:
        given["speculate"] = drafting
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise of_value(error, called) from error


def _check(body: Written, limits: Limits) -> None:
    """Sizes, before anything is made of them."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > limits.stops or any(len(each) > limits.stop_characters for each in stops):
        most = f"{limits.stops} texts of at most {limits.stop_characters:,} characters"
        raise bad(f"stop may hold {most}", "stop")
    if body.n is not None and body.n > limits.n:
        raise bad(f"n is {body.n}, and at most {limits.n} are written at once", "n")
    for name in ("logit_bias", "bad_token_ids", "stop_token_ids"):
        if len(getattr(body, name) or ()) > limits.bad_words:
            raise bad(f"{name} may hold {limits.bad_words:,} entries", name)
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options needs stream: true", "stream_options")


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    if not all(map(ID.fullmatch, given)):
        raise bad("logit_bias must map token ids to numbers", "logit_bias")
    return {int(token): bias for token, bias in given.items()}
