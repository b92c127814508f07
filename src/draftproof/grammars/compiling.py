"""A grammar becomes a matcher: on a thread of its own, within a second, and once.

What a client sends may be anything: a compilation that takes too long is left alone, and there are
never more than a few of them. Knows llguidance, not who asks.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from draftproof.sampling.grammars import Grammar

SECONDS = 1.0  # that a compilation may take
AT_ONCE = 2  # compilations, those that nobody waits for any more among them
STACK = 256 << 20  # bytes of address space: the compiler recurses as deep as rules do
# At most so many characters of white space in a row: a model in doubt would write it for ever.
SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_JSON: Any = {"whitespace_pattern": SPACE}


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

    def __init__(self, table: LLTokenizer) -> None:
        self.table = table
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of a text. Raises `ValueError`: it does not compile, or not in time."""
        if not self._places.acquire(timeout=SECONDS):
            raise ValueError(
                f"grammar: {AT_ONCE} others are being compiled, and take long: try again later"
            )
        made: list[LLMatcher] = []
        failed: list[Exception] = []

        def compile() -> None:
            try:
                made.append(self._compiled(grammar))
            except Exception as error:
                failed.append(error)
            finally:
                self._places.release()

        thread = self._started(compile)
        thread.join(SECONDS)
        if made:
            return made[0]
        if not failed:
            raise ValueError(
                f"{grammar!r} takes more than {SECONDS:g} s to compile: make it simpler"
            )
        said = " ".join(str(failed[0]).partition("<backtrace>")[0].split())[:300]
        raise ValueError(f"{grammar!r} cannot be followed: {said}")

    def _started(self, call: Callable[[], None]) -> threading.Thread:
        """A thread with a large stack: where rules nest, a small one would end the process."""
        thread = threading.Thread(target=call, name="draftproof grammar", daemon=True)
        try:
            before = threading.stack_size(STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        except BaseException:
            self._places.release()
            raise
        return thread

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        try:
            written = WRITTEN[grammar.kind](grammar.source)
        except RecursionError:
            raise ValueError("it nests too deep") from None
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self.table, written, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()  # the slowest, and what shows that nothing may be written
        if first.is_error():
            raise ValueError("there is no text that it allows")
        return matcher
