"""`draftproof quality`: from arguments to what a precision costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from draftproof import LLM, clock, hub, interrupts, quality
from draftproof import prompts as texts
from draftproof.bundled import BUNDLED, ENGLISH, MENDER
from draftproof.cli import opening
from draftproof.cli.files import text_of
from draftproof.cli.progress import Running
from draftproof.encoder_intake import EncoderIntake
from draftproof.gguf.reader import located as gguf_file
from draftproof.interrupts import INTERRUPTED
from draftproof.models import native_runs
from draftproof.out_folders import check_folder, results_in
from draftproof.quality import report
from draftproof.runners import choice, lengths, loading
from draftproof.runners.base import EncoderInput
from draftproof.runners.choice import INT8, QUANTISED

OF_TEXT = 8192  # tokens that are read of a text unless --num-tokens


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    _check(given)
    check_folder(given.out)
    target = opening.target(given)
    lies = hub.fetched(target, given.revision)
    encodes = opening.encodes(given)
    config = _configuration(given, lies, encodes)
    precisions = _precisions(given, lies, config)
    limit = lengths.length_limit(config.get_text_config(), None)
    if given.max_tokens >= limit:
        raise ValueError(f"--max-tokens {given.max_tokens} does not fit in the model's {limit}")
    tokenizer = opening.tokenizer(given)
    if tokenizer is None:
        raise ValueError(f"{given.model} came without a tokenizer, and is judged by a text")
    length = min(given.window, limit)
    if encodes:
        source, pairs = _pairs(given, tokenizer)
    else:
        source, rows, prompts = _read(given, tokenizer, length)
        prompts = [prompt[given.max_tokens - limit :] for prompt in prompts]
    exact = quality.reference_precision(loading.parameters(config))

    def load(precision: str, runner: str = given.runner) -> LLM:
        with interrupts.kept():  # else one would be told as a precision that is refused
            return LLM(
                target,
                speculate=None,
                tokenizer=tokenizer,
                runner=runner,
                dtype=precision,
                device=given.device,
                threads=given.threads,
                **opening.hub_options(given),
            )

    with Running() as running:
        running("loading the reference", None)
        with load(exact, runner="torch") as reference:
            machine, reads = clock.ran_on(reference.runner), None
            if encodes:
                prompts, rows = _rows(reference, pairs, length)
                rows = _first(rows, given.num_tokens)
                reads = [EncoderInput(prompt) for prompt in prompts[: len(rows)]]
            found = quality.compare(
                load, reference, precisions, rows, prompts, given.max_tokens, running, reads
            )
    if not found.costs and found.refused:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in found.refused.items()))
    about = {
        "heading": report.heading(found, Path(given.model).name, machine, source),
        "model": given.model,
        "text": source,
        "window": length,
    }
    _show(found, about, given)
    return INTERRUPTED if found.incomplete else 0


def _check(given: SimpleNamespace) -> None:
    """Raises `ValueError` for numbers that judge nothing."""
    for name in ("num_prompts", "max_tokens", "num_tokens"):
        if (value := getattr(given, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be 1 or more")
    for name, value in (("num-tokens", given.num_tokens), ("window", given.window)):
        if value is not None and value < 2:
            raise ValueError(f"--{name} must be 2 or more: a token is judged behind another one")


def _show(found: quality.Quality, about: dict[str, Any], given: SimpleNamespace) -> None:
    """Print the table or the JSON, and write the files: what was measured is seen in any case."""
    if given.as_json:
        print(json.dumps(about | found.as_dict()), flush=True)
        with results_in(given.out):
            report.write(found, about, given.out)
        return
    console = Console(highlight=False, markup=False)
    console.print(about["heading"])
    console.print(report.table(found, console.width))
    console.print(report.legend(found))
    for name, why in found.refused.items():
        console.print(f"{name} is left out: {why}")
    if found.incomplete:
        console.print(f"incomplete: interrupted at {found.incomplete}", style="bold")
    with results_in(given.out):
        written = report.write(found, about, given.out)
    console.print("written:", ", ".join(map(str, written)))


def _precisions(given: SimpleNamespace, target: str, config: Any) -> list[str]:
    """Those that are asked for, in order; what the machine has of the usual ones else."""
    listed = [name.strip() for value in given.dtype or () for name in value.split(",")]
    names = list(dict.fromkeys(filter(None, listed)))
    for name in names:
        if name not in QUANTISED:
            loading.pick_dtype(name)  # an unknown one is refused before anything is loaded
    quantised = gguf_file(target) is not None or hasattr(config, "quantization_config")
    if not names and quantised:
        return ["auto"]  # as it lies
    natively = native_runs(given.device) and not getattr(config, "is_encoder_decoder", False)
    return names or (["bfloat16", INT8] if natively else ["bfloat16"])


def _configuration(given: SimpleNamespace, target: str, encodes: bool) -> Any:
    """Raises `ValueError` for what cannot be judged."""
    if not encodes:
        return choice.configuration(target, **opening.hub_options(given))
    if given.text is not None:
        raise ValueError(
            f"{given.model} is an encoder-decoder, and what it writes hangs on what it read: give "
            "pairs by --prompts instead of --text"
        )
    return loading.described(target, **opening.hub_options(given))


def _pairs(given: SimpleNamespace, tokenizer: Any) -> tuple[str, list[tuple[list[int], list[int]]]]:
    """The name of the pairs, and their token ids: what is read, and what is written for it."""
    named = given.prompts or ([texts.DAMAGED] if given.model == MENDER else None)
    if named is None:
        raise ValueError(
            f"{given.model} is an encoder-decoder, and is judged by pairs: give --prompts FILE, "
            "JSON lines with `prompt`, which is read, and `completion`, which is written"
        )
    listed = texts.read(named, given.num_prompts, tokenizer, given.chat)
    return f"{', '.join(named)} pairs", [texts.pair(each, tokenizer) for each in listed]


def _rows(
    llm: LLM, pairs: Sequence[tuple[list[int], list[int]]], length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """What is read, and rows of the decoder: its start and what is written, cut at `length`."""
    intake = llm.intake
    assert isinstance(intake, EncoderIntake)
    prompts = [intake.ids(read) for read, _ in pairs]
    start = intake.begins([], None)
    return prompts, [[*start, *written][:length] for _, written in pairs]


def _read(
    given: SimpleNamespace, tokenizer: Any, length: int
) -> tuple[str, list[list[int]], list[list[int]]]:
    """The text's name, its windows, and what greedy texts continue; token ids."""
    if given.prompts and given.text is not None:
        raise ValueError("--text and --prompts both say what is read: give one")
    # The bundled model has read Python code alone.
    of_model = [texts.HELD_OUT] if given.model == BUNDLED and given.text is None else None
    if named := given.prompts or of_model:
        listed = texts.read(named, given.num_prompts, tokenizer, given.chat)
        rows = [texts.with_answer(each, tokenizer)[:length] for each in listed]
        rows = _first([row for row in rows if len(row) > 1], given.num_tokens)
        if not rows:
            raise ValueError("every prompt is one token: give longer ones")
        return f"{', '.join(named)} prompts", rows, [each.ids(tokenizer, ()) for each in listed]
    if given.text is None:
        text, name = ENGLISH.read_text(encoding="utf-8"), "the bundled English text"
    else:
        text, name = text_of(given.text, "text"), str(given.text)
    limit = given.num_tokens or OF_TEXT
    rows = quality.windows(tokenizer, text, min(length, limit), limit)
    return name, rows, quality.openings(rows, given.num_prompts)


def _first(rows: Sequence[list[int]], limit: int | None) -> list[list[int]]:
    """The first `limit` tokens of all rows together; a row of one token would tell nothing."""
    if limit is None:
        return list(rows)
    kept: list[list[int]] = []
    for row in rows:
        if len(row := row[:limit]) < 2:
            break
        kept.append(row)
        limit -= len(row)
    return kept
