"""What every worker shares: options, and answers to JSON lines, one at a time.

A worker is a process that loads one model once and then sleeps on its standard input, so that
several of them can be measured in turn. Standard library alone: workers run in several
environments. Not a server: one command, one answer, until the input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Options:
    """What a worker loads."""

    target: str
    draft: str | None
    precision: str  # bf16, int8 or int4
    threads: int
    context: int  # positions that prompt and output may take
    temperature: float  # 0: greedy
    tools: str  # where a peer's programs and bindings lie, if it has any


class NotOffered(Exception):
    """The peer has nothing of the kind; the message says so."""


class Worker(Protocol):
    """One side. `seconds` are taken inside, around what is measured and nothing else."""

    versions: dict[str, str]

    def passes(self, tokens: int, context: int, rounds: int) -> list[float]:
        """Seconds of `rounds` passes over `tokens` behind `context`, logits of all; one warm."""

    def prompt(self, tokens: int) -> float:
        """Seconds of reading a fresh prompt, up to the first token written."""

    def generate(self, ids: list[int], text: str, max_tokens: int) -> dict[str, Any]:
        """Plain decoding past end-of-text: `seconds`, `tokens`, and `ids` or `text`."""

    def speculate(
        self, ids: list[int], text: str, max_tokens: int, method: str, length: int
    ) -> dict[str, Any]:
        """The same by the peer's own speculation: `draft`, `lookup` or `merged`.

        Raises `NotOffered` for what the peer has not.
        """


def some_ids(length: int) -> list[int]:
    """Token ids to read; which ones does not matter, and every vocabulary here has these."""
    return [1 + (7 * i) % 8000 for i in range(length)]


def timed(call: Callable[[], object], rounds: int, before: Callable[[], object]) -> list[float]:
    """Seconds of each call after one that is not counted; `before` runs outside of the clock."""
    seconds = []
    for turn in range(rounds + 1):
        before()
        began = time.perf_counter()
        call()
        if turn:
            seconds.append(time.perf_counter() - began)
    return seconds


def written(ids: Sequence[int], seconds: float) -> dict[str, Any]:
    """The answer to `generate` and `speculate`."""
    return {"ids": [int(i) for i in ids], "tokens": len(ids), "seconds": seconds}


def serve(make: Callable[[Options], Worker]) -> None:
    """Load, say what is there, and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--precision", choices=("bf16", "int8", "int4"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tools", default="")
    options = Options(**vars(parser.parse_args()))
    # Whatever a library prints goes to standard error, from native code too.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = make(options)
    print(json.dumps({"versions": worker.versions}), file=answers)
    for line in sys.stdin:
        try:
            answer = _answer(worker, json.loads(line))
        except NotOffered as error:
            answer = {"error": str(error)}
        except Exception as error:  # the next command may work
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"{type(error).__name__}: {text}"}
        print(json.dumps(answer), file=answers)


def _answer(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    do = command.pop("do")
    if do == "pass":
        return {"seconds": worker.passes(**command)}
    if do == "prompt":
        return {"seconds": worker.prompt(**command)}
    if do == "generate":
        return worker.generate(**command)
    if do == "speculate":
        return worker.speculate(**command)
    raise ValueError(f"command {do!r} is unknown")
