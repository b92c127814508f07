"""`draftproof chat`: a conversation, one line for each message.

Answers go to standard output, everything else to standard error, so that a conversation can be
scripted. The template renders the whole conversation for every turn, and the prefix cache knows
what was read before. Knows no model, and no method beyond its name.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from rich.console import Console

from draftproof import LLM, Completion, SamplingParams, methods
from draftproof.bundled import BUNDLED, located
from draftproof.cli import options, output
from draftproof.cli.generate import given_sources
from draftproof.cli.options import LOADING, SAMPLING, option
from draftproof.counts import Stats
from draftproof.demo import precision
from draftproof.text import chat_ids, load_tokenizer

TALK = "The conversation"
SIGN = "> "
LEAVE = "/exit or Ctrl-D leaves"

Message = dict[str, str]


def chat(
    model: options.Model,
    system: Annotated[
        str | None, option(TALK, "What the model is told before all.", metavar="TEXT")
    ] = None,
    chat_template: Annotated[
        Path | None, option(TALK, "A Jinja template, instead of the model's own.", metavar="FILE")
    ] = None,
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
    max_tokens: Annotated[int, option(SAMPLING, "Of one answer; 512 unless given.")] = 512,
    seed: Annotated[int | None, option(SAMPLING, "Drawn for each answer unless given.")] = None,
    runner: options.Runner = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    max_length: Annotated[int | None, option(LOADING, "Tokens of the conversation.")] = None,
    threads: options.Threads = None,
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
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        max_tokens=max_tokens,
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
    first = [] if system is None else [{"role": "system", "content": system}]
    source = located(model, "target")
    tokenizer = load_tokenizer(source, None, {"trust_remote_code": trust_remote_code})
    if tokenizer is not None:  # before the weights, which may be large
        _give_template(tokenizer, model, chat_template, first)
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
        trust_remote_code=trust_remote_code,
        prefix_cache=True,
    ) as llm:
        if llm.tokenizer is None:
            raise ValueError(f"{model} came without a tokenizer, and a conversation is text")
        return _converse(Conversation(llm, params, first, names, drafting), model)


class Conversation:
    """What was said, and the model that answers. A turn that fails leaves it as it was."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        first: Sequence[Message],
        names: list[str],
        drafting: Callable[[Sequence[str]], tuple[list[str], Any]],
    ) -> None:
        self.llm, self.params = llm, params
        self.names, self._drafting = names, drafting
        self._first = first
        self.messages = list(first)
        self.answers: list[Completion] = []  # of this run, for /stats

    def take(self, line: str) -> None:
        """A message or a command; `EOFError` to leave, `ValueError` for what cannot be done."""
        if not line.startswith("/"):
            if line.strip():
                self._answer(line.strip())
            return
        name, *words = line.split()
        if name not in COMMANDS:
            raise ValueError(f"there is no command {name}: /help lists them")
        run, takes, _ = COMMANDS[name]
        if words and not takes:
            raise ValueError(f"{name} stands alone: drop {' '.join(words)!r}")
        run(self, " ".join(words))

    def _answer(self, content: str) -> None:
        llm, asked = self.llm, [*self.messages, {"role": "user", "content": content}]
        ids, room = _render(llm.tokenizer, asked), llm.max_length - 1
        if len(ids) > room:
            raise ValueError(
                f"the conversation has {len(ids)} tokens with this message and {room} fit: "
                "say it shorter, or forget what was said with /reset"
            )
        (request,) = llm.submit(ids, self.params)
        try:
            interrupted = output.write(llm, [request], quiet=False)
        finally:
            llm.engine.abort(request)
        done = request.completion()
        self.answers.append(done)
        for warning in done.warnings:
            _tell("warning: " + " ".join(warning.split()))
        if done.error is not None:
            raise ValueError(done.error)
        if done.text or not interrupted:  # else the message was taken back before its answer
            self.messages = [*asked, {"role": "assistant", "content": done.text}]
        if done.finish_reason == "length":
            full = len(request.tokens) >= llm.max_length
            limit = "the context is full" if full else f"--max-tokens {self.params.max_tokens}"
            _tell(f"(cut: {limit})")

    def _help(self, _: str) -> None:
        for name, (_run, takes, meaning) in COMMANDS.items():
            _tell(f"{f'{name} {takes}':<26} {meaning}")
        _tell(f"{'Ctrl-C':<26} end an answer\na message that begins with / needs a space before it")

    def _stats(self, _: str) -> None:
        if not self.answers:
            return _tell("nothing was written yet")
        console = Console(stderr=True)
        console.print(output.table(self.answers[-1:]))
        everything = output.table([_total(self.answers)])
        everything.title = f"all {len(self.answers)} answers"
        console.print(everything)

    def _method(self, names: str) -> None:
        if names:
            listed, drafter = self._drafting(names.split())
            self.llm.use(drafter)
            self.names = listed
        _tell(f"method: {', '.join(self.names)}")

    def _reset(self, _: str) -> None:
        self.messages = list(self._first)
        _tell("the conversation is forgotten")

    def _exit(self, _: str) -> None:
        raise EOFError


# What runs, what it takes, what it is for.
COMMANDS: dict[str, tuple[Callable[[Conversation, str], None], str, str]] = {
    "/help": (Conversation._help, "", "this list"),
    "/stats": (Conversation._stats, "", "counts of the last answer and of all"),
    "/method": (Conversation._method, "[NAME[,NAME]]", "draft with these from now on"),
    "/reset": (Conversation._reset, "", "forget what was said"),
    "/exit": (Conversation._exit, "", "leave, as Ctrl-D does"),
}


def _converse(conversation: Conversation, model: str) -> int:
    """Until the input ends. Ctrl-C ends what is going on, not the program."""
    interactive = sys.stdin.isatty()
    if interactive:
        drafts = ", ".join(conversation.names)
        _tell(f"{model}, method {drafts}: /help lists the commands, {LEAVE}")
    while True:
        try:
            conversation.take(_read(interactive))
        except EOFError:
            if interactive:
                _tell("")  # the shell begins a line of its own
            return 0
        except KeyboardInterrupt:
            if not interactive:
                raise
            _tell(f"\n{LEAVE}")
        except ValueError as error:
            _tell("error: " + " ".join(str(error).split()))


def _read(interactive: bool) -> str:
    """The next line; `EOFError` at the end of the input."""
    if interactive and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # makes `input` an editor of lines
        return input(SIGN)
    if interactive:
        print(SIGN, end="", file=sys.stderr, flush=True)
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _total(answers: Sequence[Completion]) -> Completion:
    """All answers as if they were one; the time to the first token is the mean."""
    each = [one.stats for one in answers]
    names = ("steps", "drafting_steps", "drafted", "accepted", "tokens")
    counts: dict[str, Any] = {name: sum(getattr(stats, name) for stats in each) for name in names}
    waits = [stats.first_token - stats.began for stats in each if stats.tokens]
    total = Stats(
        **counts,
        first_token=fmean(waits or [0.0]),
        ended=sum(stats.ended - stats.began for stats in each),
    )
    return replace(answers[-1], stats=total, finish_reason="")


def _give_template(tokenizer: Any, model: str, file: Path | None, first: Sequence[Message]) -> None:
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
    _render(tokenizer, [*first, {"role": "user", "content": "hello"}])


def _render(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation; whatever the template comes up with is one sentence."""
    try:
        ids = chat_ids(tokenizer, messages)
    except Exception as error:  # a template is a program of somebody else's
        raise ValueError(f"the chat template fails: {error}") from error
    if not ids:
        raise ValueError("the chat template writes nothing: look at what it does with `messages`")
    return ids
