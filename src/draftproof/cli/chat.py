"""`draftproof chat`: from arguments to a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from draftproof import SamplingParams, methods
from draftproof.cli import defaults, opening
from draftproof.cli.entry import Lines, Source
from draftproof.cli.talk import LEAVE, Conversation, converse, tell


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""

    def drafting(names: Sequence[str]) -> tuple[list[str], Any]:
        """The methods' names, and what `LLM.use` takes; options are given to what reads them."""
        listed = methods.listed(names, sources, idle=True)
        wanted = methods.needed(listed, sources)
        read = {
            option: value
            for option, value in tuning.items()
            if any(methods.takes(name, option) for name in listed)
        }
        used = {kind: source for kind, source in sources.items() if kind in wanted}
        return listed, methods.merged(listed, used, **read)

    if sys.stdin is None:
        raise ValueError("there is no standard input: messages are read from there")
    params = _params(given)  # what is wrong is told before anything is loaded
    opening.encodes(given, taken=False)
    sources, tuning = opening.sources(given), opening.tuning(given)
    speculate = opening.speculate(given)
    names = methods.listed(given.method or [methods.AUTO], sources)
    if given.profile is not None:
        names = [f"of {given.profile}"]
    tokenizer = opening.tokenizer(given)
    if tokenizer is not None:  # before the weights, which may be large
        opening.give_template(tokenizer, given.model, given.chat_template, given.system)
    kept = {"prefix_cache": True, "cache_weights": given.cache_weights}
    with opening.load(given, tokenizer=tokenizer, speculate=speculate, max_batch=1, **kept) as llm:
        if llm.tokenizer is None:
            raise ValueError(f"{given.model} came without a tokenizer, and a conversation is text")
        own = defaults.given(given.context)
        # Of a conversation's length and seed no config has a say.
        said = {"max_tokens", "stop", "seed"} | own
        params, notes = defaults.completed(llm, params, said, taken=True)
        notes += defaults.idle(params, own)
        interactive = sys.stdin.isatty()
        if not given.quiet:
            if interactive:
                opened = f"{given.model}, method {'+'.join(names)}"
                tell(f"{opened}: /help lists the commands, {LEAVE}")
            for line in notes:
                tell(line)
        entries = _entries(interactive)
        conversation = Conversation(
            llm,
            params,
            given.system,
            names,
            drafting,
            entries.confirm,
            given.quiet,
            given.colour_drafts,
        )
        return converse(conversation, entries, interactive=interactive)


def _params(given: SimpleNamespace) -> SamplingParams:
    """From those of its fields that are options of a conversation."""
    names = {field.name for field in fields(SamplingParams)} & {*vars(given)}
    sampling = {name: getattr(given, name) for name in names}
    sampling |= {"stop": tuple(given.stop or ())}
    return SamplingParams(**sampling | {"max_tokens": defaults.longest(given.max_tokens)})


def _entries(interactive: bool) -> Source:
    """A line editor where a user types, else lines as they come."""
    if interactive and sys.stdout.isatty():
        from draftproof.cli.editor import Editor  # who pipes lines need not wait for it

        return Editor()
    return Lines(prompted=interactive)
