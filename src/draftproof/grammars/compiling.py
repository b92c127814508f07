"""A grammar becomes a matcher: within a second, and once.

What a client sends may be anything, and a thread in which it compiles cannot be ended: so a process
beside this one compiles it first (`judge`), and here is compiled only what that one could. Knows
llguidance, not who asks.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from draftproof.grammars import trial
from draftproof.grammars.judge import Judge, TooMuch
from draftproof.sampling.grammars import Busy, Grammar

SECONDS = 1.0  # that a compilation may take
SLOWER = 4  # times what the trial took: this process has more to do
AT_ONCE = 2  # compilations, those that nobody waits for any more among them
# At most so many characters of white space in a row: a model in doubt would write it for ever.
SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_JSON: Any = {"whitespace_pattern": SPACE}
T = TypeVar("T")


def _choice(source: str) -> str:
    return LLMatcher.grammar_from_regex("|".join(map(_literal, json.loads(source))))


def _literal(text: str) -> str:
    """A regular expression for this text alone, in the syntax of Rust's."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&\-~/]", r"\\\g<0>", text)


WRITTEN: dict[str, Callable[[str], str]] = {
    "json": lambda source: LLMatcher.grammar_from_json_schema(source, _JSON),
    "regex": LLMatcher.grammar_from_regex,
    "choice": _choice,
    "lark": LLMatcher.grammar_from_lark,
    "gbnf": lambda source: LLMatcher.grammar_from_lark(gbnf_to_lark(source)),
}


class Compiler:
    """Makes matchers over one table of tokens."""

    def __init__(self, table: LLTokenizer, judge: Judge) -> None:
        self.table, self._judge = table, judge
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of a text. Raises `ValueError`: it does not compile, or not in time."""
        written = self._alone(grammar, lambda: _written(grammar), SECONDS)
        try:
            said = self._judge.check(written, SECONDS)
        except TooMuch as error:
            raise ValueError(f"{grammar!r} {error}") from None
        if said is not None:
            raise _refused(grammar, said)
        return self._alone(grammar, lambda: trial.compiled(self.table, written), SLOWER * SECONDS)

    def _alone(self, grammar: Grammar, make: Callable[[], T], seconds: float) -> T:
        """On a thread with a large stack: where rules nest, a small one would end the process.

        One that takes too long is left alone, and there are never more than a few of them.
        """
        if not self._places.acquire(timeout=SECONDS):
            raise Busy
        made: list[T] = []
        failed: list[Exception] = []

        def run() -> None:
            try:
                made.append(make())
            except Exception as error:
                failed.append(error)
            finally:
                self._places.release()

        self._started(run).join(seconds)
        if made:
            return made[0]
        if failed:
            raise _refused(grammar, str(failed[0]))
        raise ValueError(f"{grammar!r} takes more than {SECONDS:g} s to compile: make it simpler")

    def _started(self, call: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=call, name="draftproof grammar", daemon=True)
        try:
            before = threading.stack_size(trial.STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        except BaseException:
            self._places.release()
            raise
        return thread


def _written(grammar: Grammar) -> str:
    try:
        return WRITTEN[grammar.kind](grammar.source)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _refused(grammar: Grammar, said: str) -> ValueError:
    short = " ".join(said.partition("<backtrace>")[0].split())[:300]
    return ValueError(f"{grammar!r} cannot be followed: {short}")
