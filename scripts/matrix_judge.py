"""What a cell asks for, what plain decoding answers to it, and the verdict.

A cell is `equal` where every text is the plain one's; `runs` where a rule has a law instead, which
tests of that rule count: then each text is well formed, and a second run gives it again; `refused`
where the product says in one sentence why not; and FAIL in every other case.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix_axes import DROP_IN, Cell
from matrix_models import TOKENS, Model

import draftproof as dp
from draftproof.request import LOSSY

EQUAL, RUNS, REFUSED, FAIL = "equal", "runs", "refused", "FAIL"
EXACT = ("greedy", "coupled")  # the rules under which nothing that drafts changes a token
CLOSE = 2e-3  # between log-probabilities of one token in passes of different sizes, in float32
CALL = re.compile(r"[a-z_]{1,12}\([0-9]{1,3}\)")
SEEDS = (7, 2**64 - 1, 0, 11, 2**33, 12345, 1, 99)
PACKAGE = Path(dp.__file__).parent
IDLE = {"prediction", "max_draft_nodes", "speculate", "resume"}  # they change no token


class Refusal(Exception):
    """What a door said in one sentence, by its own way of saying it."""


@dataclass(frozen=True)
class Answer:
    """A text, as far as a door tells it. None: it does not."""

    text: str
    ids: list[int] | None = None
    finish: str | None = None
    chosen: list[float] | None = None  # log-probabilities of its tokens
    prompt: list[float] | None = None  # and of the prompt's, without the first
    drafted: int = 0
    error: str | None = None
    warnings: Sequence[str] = field(default_factory=tuple)


def of_completion(one: dp.Completion) -> Answer:
    prompts = None
    if one.prompt_logprobs is not None:
        pairs = zip(one.prompt_token_ids[1:], one.prompt_logprobs[1:], strict=True)
        prompts = [row[token] for token, row in pairs if row is not None]
    return Answer(
        one.text,
        one.token_ids,
        one.finish_reason,
        one.logprobs
        and [row[i] for i, row in zip(one.token_ids, one.logprobs, strict=True) if row],
        prompts,
        one.stats.drafted,
        one.error,
        one.warnings,
    )


def asked(model: Model, cell: Cell) -> list[tuple[str, dict[str, Any]]]:
    """Each prompt with its parameters, by the names of `SamplingParams`, and `decoder_prompt`."""
    prompts = model.prompts(cell.batch)
    if cell.door == DROP_IN:  # whose rows have one set of options
        one = _params(model, cell, 0, prompts[0][1], TOKENS)
        return [(text, dict(one)) for _, text, _ in prompts]
    return [(text, _params(model, cell, at, text, most)) for at, text, most in prompts]


def _params(model: Model, cell: Cell, at: int, text: str, most: int) -> dict[str, Any]:
    given: dict[str, Any] = {"max_tokens": most, "seed": 7}
    given["temperature"] = 0.0 if cell.rule == "greedy" else 0.8
    if cell.extra in ("-", "prefix cache", "kv memory"):
        return given
    greedy = _greedy(model, at, text)
    ids, written = greedy.ids or [], greedy.text
    tokenizer = model.base.tokenizer
    extras: dict[str, dict[str, Any]] = {
        "penalties": {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
        },
        "cuts": {"top_k": 40, "top_p": 0.95, "min_p": 0.02},
        "bias and bans": {
            "logit_bias": {ids[1]: 1.5, ids[-1]: -1.0},
            "bad_token_ids": [ids[2]],
            "min_tokens": min(4, most),
        },
        "stop strings": {"stop": [written[len(written) // 2 :][:3]]},
        "stop tokens": {"stop_token_ids": [ids[len(ids) // 2]]},
        "logprobs": {"logprobs": 3},
        "prompt logprobs": {"prompt_logprobs": 2},
        "grammar": {"grammar": dp.Grammar.regex(CALL.pattern)},
        "prediction": {"prediction": tokenizer.decode([*ids[:6], ids[0], *ids[7:]])},
        "n": {"n": 3},
        "seeds": {"seed": SEEDS[at]},
        "few nodes": {"max_draft_nodes": 2},
        "method by request": {"speculate": "ngram"},
        "decoder prompt": {"decoder_prompt": "def "},
    }
    if cell.extra == "resume":
        rule = cell.rule if cell.rule in EXACT else "greedy"
        (first,) = plain(model, text, given | {"temperature": 0.8 if rule == "coupled" else 0.0})
        return given | {"resume": (first.ids or [])[: min(4, most - 1)]}
    return given | extras[cell.extra]


def _greedy(model: Model, at: int, text: str) -> Answer:
    return plain(model, text, {"max_tokens": 16, "temperature": 0.0})[0]


def plain(model: Model, text: str, given: Mapping[str, Any]) -> list[Answer]:
    """What plain decoding writes, each prompt alone. Raises `ValueError` where it is refused."""
    own = {name: value for name, value in given.items() if name not in IDLE}
    key = text, repr(sorted(own.items()))
    if key not in model.known:
        start = own.pop("decoder_prompt", None)
        try:
            done = model.base.generate(text, dp.SamplingParams(**own), decoder_prompt=start)
            model.known[key] = [of_completion(one) for one in done]
        except ValueError as error:
            model.known[key] = error
    if isinstance(found := model.known[key], ValueError):
        raise found
    return list(found)


def wanted(model: Model, cell: Cell) -> list[Answer]:
    """The plain answers to all that a cell asks."""
    return [each for text, given in asked(model, cell) for each in plain(model, text, given)]


def verdict(
    model: Model, cell: Cell, got: Sequence[Answer] | BaseException, want: Any = None
) -> tuple[str, str]:
    """The verdict, and why where it is refused or fails. want: answers, or why there are none."""
    if isinstance(got, BaseException):
        said = refusal(got)
        return (REFUSED, said) if said else (FAIL, told(got))
    if isinstance(want, BaseException):
        return FAIL, f"it runs, and plain decoding is refused: {want}"
    each, rest = divmod(len(got), len(model.prompts(cell.batch)))  # completions of a prompt
    if rest or not each or (cell.rule in EXACT and len(got) != len(want)):
        return FAIL, f"it has {len(got)} texts"
    parts = [given for _, given in asked(model, cell) for _ in range(each)]
    if cell.door == DROP_IN:  # transformers leaves the stop string in the text
        parts = [{name: v for name, v in given.items() if name != "stop"} for given in parts]
    for at, (one, given) in enumerate(zip(got, parts, strict=True)):
        if wrong := malformed(model, one, given):
            return FAIL, f"text {at}: {wrong}"
    if cell.rule not in EXACT:
        return RUNS, ""
    for at, (one, other) in enumerate(zip(got, want, strict=True)):
        if wrong := differs(one, other):
            return FAIL, f"text {at}: {wrong}"
    return EQUAL, ""


def differs(one: Answer, plain: Answer) -> str:
    """In what a text is not the plain one; nothing where it is."""
    if None not in (one.ids, plain.ids) and one.ids != plain.ids:
        return f"tokens {one.ids} are not {plain.ids}"
    if one.text != plain.text:
        return f"{one.text!r} is not {plain.text!r}"
    if None not in (one.finish, plain.finish) and one.finish != plain.finish:
        return f"it ends with {one.finish}, not {plain.finish}"
    for what, mine, own in (
        ("log-probabilities", one.chosen, plain.chosen),
        ("log-probabilities of the prompt", one.prompt, plain.prompt),
    ):
        if mine is None or own is None:
            continue
        if len(mine) != len(own) or any(abs(a - b) > CLOSE for a, b in zip(mine, own, strict=True)):
            return f"{what} {mine} are not {own}"
    return ""


def malformed(model: Model, one: Answer, given: Mapping[str, Any]) -> str:
    """What is wrong with a text whatever the rule."""
    others = [each for each in one.warnings if each != LOSSY]
    ids, unknown = one.ids or [], one.ids is None
    begun = list(given.get("resume", ()))
    wrong = {
        f"it ended with an error: {one.error}": one.error is not None,
        f"it warns: {' '.join(others)}": bool(others),
        f"it ends with {one.finish}": one.finish not in (None, "stop", "length"),
        "it has no log-probabilities": "logprobs" in given and not one.chosen,
        "its prompt has no log-probabilities": "prompt_logprobs" in given and not one.prompt,
        f"it has {len(ids)} tokens for {given['max_tokens']}": not (
            unknown or 0 < len(ids) <= given["max_tokens"]
        ),
        "it has a token that was banned": bool({*ids} & {*given.get("bad_token_ids", ())}),
        "it does not go on from what was resumed": not unknown and ids[: len(begun)] != begun,
        "it has a text that was to end it": any(s in one.text for s in given.get("stop", ())),
        f"{one.text!r} is not what the grammar allows": "grammar" in given
        and one.finish == "stop"
        and not CALL.fullmatch(one.text),
    }
    return next((what for what, is_so in wrong.items() if is_so), "")


def refusal(error: BaseException) -> str:
    """The sentence of a refusal; nothing where it is none: a failure, or no plain sentence."""
    said = str(error)
    if "\n" in said or not 15 <= len(said) <= 400:
        return ""
    if isinstance(error, Refusal):
        return said
    if type(error) is not ValueError and not type(error).__module__.startswith("draftproof"):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    ours = bool(last) and all(Path(frame.filename).is_relative_to(PACKAGE) for frame in last)
    return said if ours and isinstance(error, ValueError) else ""


def told(error: BaseException) -> str:
    """An error that is no refusal, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = " > ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({where})"
