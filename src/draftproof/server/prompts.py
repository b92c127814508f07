"""What a body asks about: prompts, their token ids, and the requests for them.

Knows neither HTTP nor who is let in: the server's calls and the lines of a batch are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.asked import integers, is_conversation
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.sampling import SamplingParams
from draftproof.server.bodies import TextBody
from draftproof.server.refusals import bad, of_value


def prompts_of(body: TextBody) -> list[str | list[int]]:
    """One prompt or several. Raises `Refused`."""
    given: Any = body.prompt
    if given is None:
        raise bad("there is no prompt: send text, token ids, or a list of either", "prompt")
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise bad("the list of prompts is empty: send at least one", "prompt")
    return list(given)


def check_echo(llm: LLM, asked: bool) -> None:
    """Raises `Refused` where a text does not stand behind its prompt."""
    if asked and llm.runner.encodes:
        raise bad(
            "echo cannot be followed: an encoder-decoder's text does not go on from its prompt",
            "echo",
        )


def echo(tokenizer: Any, given: str | list[int], ids: Sequence[int]) -> str:
    """The text of a prompt."""
    if isinstance(given, str):
        return given
    return str(tokenizer.decode(integers(ids))) if tokenizer is not None else ""


def encoded(
    llm: LLM, prompt: Any, template: Mapping[str, Any] | None = None, fits: bool = True
) -> list[int]:
    """Token ids of a prompt. template: see `chat_ids`. fits: it has to. Raises `Refused`."""
    field = "messages" if is_conversation(prompt) else "prompt"
    try:
        if template:
            prompt = llm.intake.chat_ids(prompt, template)
        return llm.intake.ids(prompt) if fits else llm.intake.encoded(prompt)
    except ValueError as error:
        raise bad(str(error), field) from error


def begun(llm: LLM, given: str | Sequence[int] | None) -> list[int] | None:
    """What texts of an encoder-decoder go on from; None: a decoder's do from their prompts.

    given: what stands there behind the start token. Raises `Refused`.
    """
    if given is None and not llm.runner.encodes:
        return None
    try:
        return llm.intake.begins([], given)
    except ValueError as error:
        raise bad(str(error), "decoder_prompt") from error


def check_room(
    llm: LLM, prompts: Sequence[Sequence[int]], start: Sequence[int] | None, asked: int | None
) -> None:
    """Raises `Refused` where what is gone on from and so many tokens behind it do not fit.

    start: see `begun`. asked: None where a call wants no number of tokens.
    """
    longest = max(map(len, prompts if start is None else [start]))
    if asked is not None and longest + asked > llm.max_length:
        what = "prompt" if start is None else "decoder's prompt"
        raise bad(
            f"the {what} has {longest} tokens and max_tokens is {asked}, and the context ends "
            f"at {llm.max_length}: shorten one of them",
            "max_tokens",
        )


def prepared(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, **more: Any
) -> list[Request]:
    """Requests that do not run yet: those of the first prompt first. Raises `Refused`.

    more: as `LLM.prepare` takes it.
    """
    try:
        return [request for ids in prompts for request in llm.prepare(ids, params, **more)]
    except ValueError as error:
        raise of_value(error) from error
