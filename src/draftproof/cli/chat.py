"""`draftproof chat`: from arguments to a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from draftproof import LLM, SamplingParams, methods
from draftproof.bundled import BUNDLED, located
from draftproof.cli import defaults, options
from draftproof.cli.entry import Lines, Source
from draftproof.cli.generate import foreign, given_sources
from draftproof.cli.talk import LEAVE, Conversation, converse, opening, render, tell
from draftproof.text import load_tokenizer


def chat(
    context: typer.Context,
    model: options.Model,
    system: options.System = None,
    chat_template: options.ChatTemplate = None,
    method: options.Method = None,
    draft: options.Draft = None,
    any_tokenizer: options.AnyTokenizer = False,
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
    quiet: options.Quiet = False,
) -> int:
    """Talk with a model; /help lists what can be said besides messages.

    It samples as the model's own generation_config says, unless options say otherwise.
    """

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
    params = SamplingParams(  # what is wrong is told before anything is loaded
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
    source = located(model, "target")
    loading: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    sources: dict[str, Any] = given_sources(draft, heads)
    if any_tokenizer:
        sources = sources | foreign(sources, source, loading)
    tuning = {
        "num_draft_tokens": num_draft_tokens,
        "min_confidence": min_confidence,
        "branch": branch,
    }
    speculate = methods.merged(method or [], sources, **tuning)
    names = methods.listed(method or [], sources) or ["none"]
    tokenizer = load_tokenizer(source, None, loading)
    if tokenizer is not None:  # before the weights, which may be large
        _give_template(tokenizer, model, chat_template, system)
    with LLM(
        source,
        tokenizer=tokenizer,
        speculate=speculate,
        rule=rule,
        runner=runner,
        dtype=dtype or "auto",
        device=device,
        max_batch=1,
        max_length=max_length,
        threads=threads,
        prefix_cache=True,
        **loading,
    ) as llm:
        if llm.tokenizer is None:
            raise ValueError(f"{model} came without a tokenizer, and a conversation is text")
        # Of a conversation's length and seed no config has a say.
        own = {"max_tokens", "stop", "seed"} | defaults.given(context)
        params, notes = defaults.completed(llm, params, own, taken=True)
        interactive = sys.stdin.isatty()
        if interactive and not quiet:
            tell(f"{model}, method {'+'.join(names)}: /help lists the commands, {LEAVE}")
        if not quiet:
            for line in notes:
                tell(line)
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
