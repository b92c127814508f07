"""A conversation: messages and commands in, answers out.

Answers go to standard output, everything else to standard error, so that a conversation can be
scripted. The template renders the whole conversation for every turn, and the prefix cache knows
what was read before. Does not know where entries come from, and no method beyond its name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rich.console import Console

from draftproof import LLM, Completion, SamplingParams
from draftproof.cli import output
from draftproof.cli.coloured import END, Coloured
from draftproof.cli.entry import BACKSLASH, QUOTES, Entry, Source
from draftproof.cli.margin import Margin
from draftproof.cli.settings import changed, listing
from draftproof.counts import Stats
from draftproof.request import Request
from draftproof.templates import chat_ids
from draftproof.text import TextStream

LEAVE = "/bye or Ctrl-D leaves"
USAGE = 27  # columns of what is typed, in the help
SHARE = 4  # of the context: room for an answer where old turns are dropped

Message = dict[str, str]


class Conversation:
    """What was said, and the model that answers. A turn that fails leaves it as it was.

    drafting: what `LLM.use` takes for the methods that a user lists, behind their names.
    """

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        system: str | None,
        names: list[str],
        drafting: Callable[[Sequence[str]], tuple[list[str], Any]],
        confirm: Callable[[str], bool],
        quiet: bool,
        coloured: bool = False,
    ) -> None:
        self._coloured = coloured
        self.llm, self.params, self.names = llm, params, names
        self._drafting, self._confirm, self._quiet = drafting, confirm, quiet
        self.system = system_messages(system)
        self.turns: list[Message] = []  # the user's and the model's, one after the other
        self.answers: list[Completion] = []  # of this run, for /stats

    def take(self, entry: Entry) -> None:
        """A message or a command; `EOFError` to leave, `ValueError` for what cannot be done."""
        text = entry.text.strip()
        if not entry.is_command:
            if text:
                self._answer(self.turns, text)
            return
        name, *rest = text.split(maxsplit=1)
        command, words = COMMANDS.get(ALIASES.get(name, name)), "".join(rest)
        if command is None:
            raise ValueError(f"there is no command {name}: /help lists them")
        if words and not command.takes:
            raise ValueError(f"{name} stands alone: drop {words!r}")
        command.run(self, words)

    def _answer(self, before: Sequence[Message], content: str) -> None:
        llm = self.llm
        turns, ids = self._fitting([*before, {"role": "user", "content": content}])
        (request,) = llm.submit(ids, self.params)
        try:
            interrupted, legend = _write(llm, request, self._coloured)
        finally:
            llm.engine.abort(request)
        done = request.completion()
        told = self.answers[-1].warnings if self.answers else []
        self.answers.append(done)
        for warning in done.warnings:
            if warning not in told:
                tell("warning: " + " ".join(warning.split()))
        if done.error is not None:
            raise ValueError(done.error)
        if done.text or not interrupted:  # else the message was taken back before its answer
            self.turns = [*turns, {"role": "assistant", "content": done.text}]
        if done.finish_reason == "length":
            full = len(request.tokens) >= llm.max_length
            limit = "the context is full" if full else f"--max-tokens {self.params.max_tokens}"
            tell(f"(cut: {limit})")
        if not self._quiet and done.stats.tokens:
            tell(f"({output.speed(done.stats)}{legend and ', drafted by ' + legend})")

    def _fitting(self, turns: list[Message]) -> tuple[list[Message], list[int]]:
        """The turns and their token ids; where all is full, without the oldest."""
        ids, room = render(self.llm.tokenizer, [*self.system, *turns]), self.llm.max_length - 1
        if len(ids) <= room:
            return turns, ids
        needed, kept, fewer = len(ids), turns, ids
        wanted = room - min(self.params.longest, room // SHARE)
        while len(kept) > 1 and len(fewer) > wanted:
            kept = kept[2:]  # a message and its answer
            fewer = render(self.llm.tokenizer, [*self.system, *kept])
        dropped = (len(turns) - len(kept)) // 2
        if len(fewer) <= room and self._confirm(
            f"the context is full ({needed} tokens, {room} fit): "
            f"forget the oldest {dropped} of {len(turns) // 2} turns? [Y/n] "
        ):
            return kept, fewer
        raise ValueError(
            f"the conversation has {needed} tokens with this message and {room} fit: "
            "say it shorter, or forget what was said with /reset"
        )

    def _help(self, _: str) -> None:
        for name, command in COMMANDS.items():
            same = [alias for alias, meant in ALIASES.items() if meant == name]
            usage = f"{', '.join([name, *same])} {command.takes}"
            tell(f"{usage:<{USAGE}} {command.meaning}")
        tell(f"{QUOTES:<{USAGE}} begins a message of several lines, and ends it")
        tell(f"{BACKSLASH + ', then Enter':<{USAGE}} goes on in a new line; a paste needs neither")
        tell(f"{'Ctrl-C':<{USAGE}} end an answer")
        tell("a message that begins with / needs a space before it")

    def _stats(self, _: str) -> None:
        if not self.answers:
            return tell("nothing was written yet")
        console = Console(stderr=True)
        console.print(output.table(self.answers[-1:], console.width))
        everything = output.table([_total(self.answers)], console.width)
        everything.title = (
            f"all {len(self.answers)} answers" if len(self.answers) > 1 else "the only answer"
        )
        console.print(everything)

    def _method(self, names: str) -> None:
        if names:
            listed, drafter = self._drafting(names.split())
            self.llm.use(drafter)
            self.names = listed
        tell(f"method: {'+'.join(self.names) or 'none'}")

    def _set(self, words: str) -> None:
        if words:
            self.params = changed(self.params, words)
        tell(listing(self.params))

    def _system(self, text: str) -> None:
        if text:
            system = system_messages(text)
            greeting = [{"role": "user", "content": "hello"}]
            render(self.llm.tokenizer, [*system, *(self.turns or greeting)])
            self.system = system
        elif self.system:
            tell(self.system[0]["content"])
        else:
            tell("there is no system message: /system TEXT gives one")

    def _regenerate(self, _: str) -> None:
        if not self.turns:
            raise ValueError("nothing was answered yet: say something first")
        self._answer(self.turns[:-2], self.turns[-2]["content"])
        if not self.params.temperature:
            tell("(temperature 0 writes the same again: /set temperature 0.7 varies it)")
        elif self.params.seed is not None:
            tell(f"(seed {self.params.seed} writes the same again: /set seed none varies it)")

    def _reset(self, _: str) -> None:
        self.turns = []
        tell("the conversation is forgotten")

    def _leave(self, _: str) -> None:
        raise EOFError


@dataclass(frozen=True)
class Command:
    """What runs, what it takes, what it is for."""

    run: Callable[[Conversation, str], None]
    takes: str
    meaning: str


COMMANDS = {
    "/help": Command(Conversation._help, "", "this list"),
    "/system": Command(Conversation._system, "[TEXT]", "what the model is told before all"),
    "/set": Command(Conversation._set, "[NAME VALUE]", "how it samples; alone: the values"),
    "/method": Command(Conversation._method, "[NAME[+NAME]]", "draft with these from now on"),
    "/regenerate": Command(Conversation._regenerate, "", "another answer to the last message"),
    "/stats": Command(Conversation._stats, "", "counts of the last answer and of all"),
    "/reset": Command(Conversation._reset, "", "forget what was said"),
    "/bye": Command(Conversation._leave, "", "leave, as Ctrl-D does"),
}
ALIASES = {
    "/?": "/help",
    "/show": "/set",
    "/clear": "/reset",
    "/new": "/reset",
    "/regen": "/regenerate",
    "/exit": "/bye",
    "/quit": "/bye",
}


def converse(conversation: Conversation, source: Source, *, interactive: bool) -> int:
    """Until the input ends. Ctrl-C ends what is going on, not the program."""
    while True:
        try:
            conversation.take(source.read())
        except EOFError:
            if interactive:
                tell("")  # the shell begins a line of its own
            return 0
        except KeyboardInterrupt:
            if not interactive:
                raise
            tell(f"\n{LEAVE}")
        except ValueError as error:
            tell("error: " + " ".join(str(error).split()))


def tell(text: str) -> None:
    """What is no answer."""
    print(text, file=sys.stderr, flush=True)


def system_messages(system: str | None) -> list[Message]:
    """The system message, if there is one."""
    return [{"role": "system", "content": system}] if system else []


def render(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation; whatever the template comes up with is one sentence."""
    try:
        ids = chat_ids(tokenizer, messages)
    except Exception as error:  # a template is a program of somebody else's
        raise ValueError(f"the chat template fails: {error}") from error
    if not ids:
        raise ValueError("the chat template writes nothing: look at what it does with `messages`")
    return ids


def _write(llm: LLM, request: Request, coloured: bool) -> tuple[bool, str]:
    """Print an answer as it is written; whether an interrupt ended it, and the colours' legend."""
    assert isinstance(request.text, TextStream)
    margin, interrupted, text = Margin(), False, request.text
    drafter = str(getattr(llm.engine.proposer, "name", "a method of yours"))
    colours = Coloured(request, llm.tokenizer, drafter) if coloured else None

    def show(ended: bool) -> None:
        if colours is None:
            margin.write(text.take())
            return
        for piece, begin in colours.take(ended):
            margin.write(piece, begin, END if begin else "")

    try:
        for _ in llm.engine.run([request]):
            show(False)
    except KeyboardInterrupt:
        interrupted = True
    show(True)
    margin.end(line=interrupted or not text.text.endswith("\n"))
    return interrupted, colours.legend() if colours is not None else ""


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
