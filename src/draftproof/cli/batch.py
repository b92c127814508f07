"""`draftproof batch`: from arguments to a file of answers, and what is told of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from draftproof import fingerprints, memory
from draftproof.cli import opening, sampling
from draftproof.cli.chat import give_template
from draftproof.cli.files import place
from draftproof.cli.progress import Running
from draftproof.sampling.defaults import options_of

if TYPE_CHECKING:
    from draftproof.batch.lines import Input, Line
    from draftproof.batch.results import Results
    from draftproof.batch.run import Run

WRONG, INTERRUPTED = 1, 130  # exit codes
SHOWN = 20  # errors, of which the output has all


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    with opening.needing_serve("batch"):
        from draftproof.batch import run as running
        from draftproof.batch.lines import Input
        from draftproof.batch.results import Results
    asked = Input(given.lines)
    out = place(given.out, "batch.jsonl")
    _check_apart(asked.path, out, out.with_name(out.name + ".stats.jsonl"))
    calls = [line for line in asked.lines if line.wrong is None]
    given.model, given.rule = given.target or asked.model, "coupled"
    if calls and given.model is None:
        raise ValueError("no line of the batch names a model: add --target MODEL")
    memory.bytes_of(given.kv_memory)
    defaults = sampling.of_clients(given)
    speculate = None
    if calls:
        opening.target(given)
        speculate = opening.speculate(given)
    with Results(out, asked.digest, asked.by_id.__contains__) as results:
        before, todo = len(results.done), running.left(calls, results)
        done = running.Run()
        try:
            if todo:
                _write(given, asked, results, todo, done, defaults, speculate)
            else:
                if not calls:
                    results.written_by({})
                running.tell_broken(asked, results, done)
        except KeyboardInterrupt:
            _summary(given, asked, results, done, before)
            return INTERRUPTED
        _summary(given, asked, results, done, before)
        if done.failed:
            number, why = done.failed[0]
            raise ValueError(
                f"{len(done.failed)} lines have no answer yet (line {number}: {why}): run the "
                "same command again"
            )
        return WRONG if results.wrong else 0


def _write(
    given: SimpleNamespace,
    asked: Input,
    results: Results,
    todo: Sequence[Line],
    done: Run,
    defaults: dict[str, Any],
    speculate: Any,
) -> None:
    """Load the model, and answer what has no answer yet."""
    from draftproof.batch.calls import Calls
    from draftproof.batch.run import Batch, tell_broken

    tokenizer = opening.tokenizer(given)
    if given.chat_template is not None:
        give_template(tokenizer, given.model, given.chat_template)
    made = opening.load(
        given,
        encoders=True,
        tokenizer=tokenizer,
        speculate=speculate,
        max_batch=given.max_batch,
        prefix_cache=True,
        kv_memory=given.kv_memory,
        cache_weights=given.cache_weights,
    )
    with made as llm, Running() as shown:
        if given.model_defaults:
            defaults = options_of(llm.runner.model.generation_config) | defaults
        results.written_by(
            {
                "model": fingerprints.of(llm.runner, llm.tokenizer),
                "chat template": getattr(llm.tokenizer, "chat_template", None),
                "sampling": {name: defaults[name] for name in sorted(defaults)},
            }
        )
        tell_broken(asked, results, done)
        every = len(asked.lines)

        def told(run: Run) -> None:
            count = len(results.done)
            shown(f"{count:,} of {every:,} lines, {run.per_second:.0f} tokens/s", count / every)

        done.began = time.monotonic()  # without what loading took
        for each in Batch(Calls(llm, asked.model or given.model, defaults)).write(todo):
            done.take(each, results)
            told(done)


def _check_apart(asked: Path, *written: Path) -> None:
    """Raises `ValueError` where the input would be written over."""
    for path in written:
        if path.exists() and path.samefile(asked):
            raise ValueError(f"{path} is the input itself: give another --out")


def _summary(
    given: SimpleNamespace, asked: Input, results: Results, done: Run, before: int
) -> None:
    """On stderr: what is wrong, and how much was done."""
    for said in done.wrong[:SHOWN]:
        print(said, file=sys.stderr)
    if (more := len(done.wrong) - SHOWN) > 0:
        print(f"... and {more:,} more errors, which are in {results.path}", file=sys.stderr)
    count, every = len(results.done), len(asked.lines)
    if count > before:
        results.tell(
            {"run": {"lines": count - before, "tokens": done.tokens, "seconds": done.seconds}}
        )
    if given.quiet:
        return
    fresh = f"{count - before:,} of them now" if before else "in one run"
    print(
        f"{results.path}: {count:,} of {every:,} lines ({results.wrong:,} with an error), {fresh}: "
        f"{done.tokens:,} tokens in {done.seconds:.1f} s, {done.per_second:.1f} tokens/s",
        file=sys.stderr,
        flush=True,
    )
