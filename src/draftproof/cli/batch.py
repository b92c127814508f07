"""`draftproof batch`: from arguments to a file of answers, and what is told of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from draftproof.cli import batch_model, opening, sampling
from draftproof.cli.files import place
from draftproof.cli.progress import Running
from draftproof.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from draftproof.batch.lines import Input, Line
    from draftproof.batch.results import Results
    from draftproof.batch.run import Done, Run
    from draftproof.llm import LLM

WRONG = 1  # the exit code where a line has an error
SHOWN = 20  # errors, of which the output has all


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    with opening.needing("batch", "serve"):
        from draftproof.batch import run as running
        from draftproof.batch.lines import Input
        from draftproof.batch.results import SUFFIX, Results
    asked = Input(given.lines)
    out = place(given.out, "batch.jsonl")
    _check_apart(asked.path, out, out.with_name(out.name + SUFFIX))
    calls = [line for line in asked.lines if line.wrong is None]
    given.model, given.rule = given.target or asked.model, "coupled"
    if calls and given.model is None:
        raise ValueError("no line of the batch names a model: add --target MODEL")
    _check_ray(given)
    if calls and given.target is None:
        _check_named(given)
    defaults = sampling.of_clients(given)
    # What is wrong is told before anything is loaded.
    load = opening.for_many(given, prefix_cache=True) if calls else None
    with Results(out, asked.digest, asked.by_id.__contains__) as results:
        before, todo = len(results.done), running.left(calls, results)
        done = running.Run()
        try:
            if todo:
                _write(given, asked, results, todo, done, defaults, load)
            else:
                results.written_by(_asked_writer(given, defaults) if calls else {})
                running.tell_broken(asked, results, done)
                if calls and results.called not in (None, here := _called(given)):
                    print(
                        f"warning: {results.path} was whole, with answers of {results.called}, and "
                        f"{here} was not loaded: give another --out for answers of it",
                        file=sys.stderr,
                    )
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
    load: Callable[[], LLM] | None,
) -> None:
    """Load the model, here or in actors, and answer what has no answer yet."""
    from draftproof.batch import engines
    from draftproof.batch.run import Batch, tell_broken

    every, name = len(asked.lines), asked.model or given.model
    begun = False

    def begin(writer: Mapping[str, Any]) -> None:
        nonlocal begun
        results.written_by(writer, _called(given))
        if not begun:
            tell_broken(asked, results, done)
            done.began = time.monotonic()  # without what loading took
        begun = True

    def take(each: Done) -> None:
        done.take(each, results)
        count = len(results.done)
        shown(f"{count:,} of {every:,} lines, {done.per_second:.0f} tokens/s", count / every)

    if given.ray is not None:
        from draftproof.ray.batch import Actors

        with Actors(given, name, defaults) as actors, Running() as shown:
            shown(f"{given.ray} engines load {given.model}", None)
            engines.write(todo, actors, given.ray, given.max_batch, begin, take)
        return
    with batch_model.opened(given, name, defaults, load) as (calls, writer), Running() as shown:
        begin(writer)
        for each in Batch(calls).write(todo):
            take(each)


def _asked_writer(given: SimpleNamespace, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Who writes, as far as it is known before a model is loaded."""
    if given.model_defaults:  # which go before these
        return {}
    return {"sampling": {name: defaults[name] for name in sorted(defaults)}}


def _called(given: SimpleNamespace) -> str:
    """What the command calls the model that writes, with its precision and its revision."""
    more = (("in", given.dtype), ("at", given.revision))
    return " ".join([given.model, *(f"{word} {value}" for word, value in more if value)])


def _check_ray(given: SimpleNamespace) -> None:
    """Raises `ValueError` where there is no Ray, or it cannot give what is asked for."""
    if given.ray is None:
        return
    with opening.needing("--ray", "ray"):
        import draftproof.ray.batch  # noqa: F401
    if given.device not in ("auto", "cpu"):
        raise ValueError(f"--ray gives its engines cores alone: drop --device {given.device}")


def _check_named(given: SimpleNamespace) -> None:
    """Raises `ValueError` where what the lines name is no model, as a name of OpenAI's."""
    try:
        opening.check_hub(given)
    except ValueError as error:
        raise ValueError(
            f"{error}; the lines name it: --target MODEL answers them with another one"
        ) from error


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
