"""`draftproof chat`: from arguments to a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from draftproof import LLM, SamplingParams, methods
from draftproof.bundled import BUNDLED, located
from draftproof.cli import options
from draftproof.cli.entry import Lines, Source
from draftproof.cli.generate import given_sources
from draftproof.cli.options import LOADING, SAMPLING, option
from draftproof.cli.talk import LEAVE, Conversation, converse, opening, render, tell
from draftproof.demo import precision
from draftproof.text import load_tokenizer

TALK = "The conversation"
MAX_TOKENS = 512  # of one answer


def chat(
    model: options.Model,
    system: Annotated[
        str | None, option(TALK, "What the model is told before all.", metavar="TEXT")
    ] = None,
    chat_template: Annotated[
        Path | None, option(TALK, "A Jinja template, instead of the model's own.", metavar="FILE")
    ] = None,
    quiet: Annotated[
        bool, option(TALK, "No greeting, no line of speed after an answer.", "--quiet")
    ] = False,
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
    max_tokens: Annotated[int, option(SAMPLING, "Of one answer; 512 unless given.")] = MAX_TOKENS,
    stop: Annotated[
        list[str] | None, option(SAMPLING, "End before it; repeatable.", metavar="TEXT")
    ] = None,
    seed: Annotated[int | None, option(SAMPLING, "Drawn for each answer unless given.")] = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: Annotated[int | None, option(LOADING, "Tokens of the conversation.")] = None,
    threads: options.Threads = None,
    revision: Annotated[str | None, option(LOADING, "Branch, tag or commit on the hub.")] = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Talk with a model; /help lists what can be said besides messages."""

    def drafting(names: Sequence[str]) -> tuple[list[str], Any]:
        """The methods' names, and what `LLM.use` takes; options are given to what reads them."""
        listed = methods.listed(names, sources, idle=True)
        wanted = methods.needed(listed, sources)
        read = {
            option: value
            for option, value in tuning.items()
            if any(methods.takes(name, option) for name in listed)
        }
        given = {kind: source for kind, source in sources.items() if kind in wanted}
        return listed, methods.merged(listed, given, **read)

    if sys.stdin is None:
        raise ValueError("there is no standard input: messages are read from there")
    if revision is not None and (model == BUNDLED or Path(model).is_dir()):
        raise ValueError(f"revision {revision!r} is for models of the hub, and {model!r} is none")
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        seed=seed,
    )
    sources = given_sources(draft, heads)
    tuning = {
        "num_draft_tokens": num_draft_tokens,
        "min_confidence": min_confidence,
        "branch": branch,
    }
    speculate = methods.merged(method or [], sources, **tuning)
    names = methods.listed(method or [], sources) or ["none"]
    source = located(model, "target")
    loading: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(source, None, loading)
    if tokenizer is not None:  # before the weights, which may be large
        _give_template(tokenizer, model, chat_template, system)
    with LLM(
        source,
        tokenizer=tokenizer,
        speculate=speculate,
        rule=rule,
        runner=runner,
        dtype=precision(dtype, runner, device) if model == BUNDLED else dtype or "auto",
        device=device,
        max_batch=1,
        max_length=max_length,
        threads=threads,
        prefix_cache=True,
        **loading,
    ) as llm:
        if llm.tokenizer is None:
            raise ValueError(f"{model} came without a tokenizer, and a conversation is text")
        interactive = sys.stdin.isatty()
        if interactive and not quiet:
            tell(f"{model}, method {'+'.join(names)}: /help lists the commands, {LEAVE}")
        entries = _entries(interactive)
        conversation = Conversation(llm, params, system, names, drafting, entries.confirm, quiet)
        return converse(conversation, entries, interactive=interactive)


def _entries(interactive: bool) -> Source:
    """A line editor where a user types, else lines as they come."""
    if interactive and sys.stdout.isatty():
        from draftproof.cli.editor import Editor  # who pipes lines need not wait for it

        return Editor()
    return Lines(prompted=interactive)


def _give_template(tokenizer: Any, model: str, file: Path | None, system: str | None) -> None:
    """Take the template from `file` if there is one, and try it on a first message."""
    if file is not None:
        try:
            tokenizer.chat_template = file.read_bytes().decode()
        except OSError as error:
            raise ValueError(f"cannot read the chat template {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"the chat template {file} is not UTF-8 text") from error
    if not tokenizer.chat_template:
        raise ValueError(f"{model} has no chat template: give one with --chat-template FILE")
    render(tokenizer, [*opening(system), {"role": "user", "content": "hello"}])
