"""Compiling, and a process for it: run as a file, which knows nothing of draftproof.

A line of JSON tells the tokenizer; then each line is a grammar, and is answered by a line: what is
wrong with it, or null. The process ends itself where that takes too much memory, and whoever asks
ends it where it takes too long; nobody could end a thread.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

STACK = 256 << 20  # bytes of address space: the compiler recurses as deep as rules do
ROOM = 4 << 30  # bytes of address space for all


def compiled(table: LLTokenizer, written: str) -> LLMatcher:
    """A matcher at the beginning of a text. Raises `ValueError` for what cannot be followed."""
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(table, written, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    first = matcher.deep_copy()
    first.compute_bitmask()  # the slowest, and what shows that nothing may be written
    if first.is_error():
        raise ValueError("there is no text that it allows")
    return matcher


def table_of(tokenizer: str, vocabulary: int, ends: list[int]) -> LLTokenizer:
    """What each token says; takes up to a second."""
    return LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=ends)


def answer(given: Any) -> None:
    """The lines of standard input."""
    table = table_of(*json.loads(next(given)))
    print(flush=True)  # it is ready
    for line in given:
        try:
            compiled(table, json.loads(line))
            said = None
        except Exception as error:
            said = str(error)
        print(json.dumps(said), flush=True)


def main() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    thread = threading.Thread(target=answer, args=[sys.stdin])
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
