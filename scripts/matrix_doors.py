"""The doors of the matrix: each asks one kind of model, with one method, for what its cells want.

A door yields every cell with its answers, or with what was raised. Knows no verdict.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix_axes import BATCH, DROP_IN, PYTHON, RAY, SERVER, SHELL, STREAM, Cell
from matrix_drop_in import drop_in
from matrix_judge import Answer, Refusal, asked, of_completion
from matrix_models import Model
from matrix_server import body_of, of_body, server

import draftproof as dp
from draftproof import cli

Asked = Iterator[tuple[Cell, list[Answer] | BaseException]]
RULES = {"greedy": "coupled", "coupled": "coupled", "rejection": "rejection", "typical": "typical"}
PLACES = {"1": 1, "8": 8, "ragged": 3}
OF_LLM: Mapping[str, dict[str, Any]] = {
    "prefix cache": {"prefix_cache": True},
    "kv memory": {"kv_memory": "256MB"},
}


def tried(cell: Cell, ask: Callable[[], list[Answer]]) -> tuple[Cell, list[Answer] | BaseException]:
    try:
        return cell, ask()
    except Exception as error:
        return cell, error


# --- Python --------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(model: Model, cell: Cell) -> Iterator[dp.LLM]:
    """On the weights of the plain one."""
    room: dict[str, Any] = {"rule": RULES[cell.rule], "max_batch": PLACES[cell.batch]}
    room |= OF_LLM.get(cell.extra, {})
    with dp.LLM(model.base, speculate=model.speculate(cell.method), **room) as llm:
        yield llm


def python(model: Model, cells: Sequence[Cell]) -> Asked:
    """`LLM.generate`; an engine serves the cells that want the same one."""
    for cell in cells:
        yield tried(cell, lambda cell=cell: generated(model, cell))


def generated(model: Model, cell: Cell) -> list[Answer]:
    given = asked(model, cell)
    starts = [each.pop("decoder_prompt", None) for _, each in given]
    params = [dp.SamplingParams(**each) for _, each in given]
    start = None if starts[0] is None else starts
    with opened(model, cell) as llm:
        done = llm.generate([text for text, _ in given], params, decoder_prompt=start)
    return [of_completion(one) for one in done]


def stream(model: Model, cells: Sequence[Cell]) -> Asked:
    for cell in cells:
        yield tried(cell, lambda cell=cell: streamed(model, cell))


def streamed(model: Model, cell: Cell) -> list[Answer]:
    ((text, given),) = asked(model, cell)
    start = given.pop("decoder_prompt", None)
    before = list(given.get("resume", ()))
    with opened(model, cell) as llm:
        chunks = list(llm.stream(text, dp.SamplingParams(**given), decoder_prompt=start))
        shown = "".join(chunk.text for chunk in chunks)
        ids = before + [token for chunk in chunks for token in chunk.token_ids]
        if before:  # chunks have what is new
            shown = llm.tokenizer.decode(before) + shown
    rows = [row for chunk in chunks for row in chunk.logprobs or ()]
    chosen = [row[i] for i, row in zip(ids, rows, strict=True)] if rows else None
    last = chunks[-1]
    return [Answer(shown, ids, last.finish_reason, chosen, error=last.error)]


# --- the shell -----------------------------------------------------------------------------------


def shell(model: Model, cells: Sequence[Cell]) -> Asked:
    """`draftproof generate --json`."""
    for cell in cells:
        yield tried(cell, lambda cell=cell: of_shell(model, cell))


def of_shell(model: Model, cell: Cell) -> list[Answer]:
    ((text, given),) = asked(model, cell)
    words = ["generate", model.name, text, "--json", "--rule", RULES[cell.rule], *loading(model)]
    with tempfile.TemporaryDirectory() as folder:
        words += [*model.words(cell.method), *flags(given, Path(folder))]
        told = json.loads(command(words))
    prompts = None
    if told["prompt_logprobs"] is not None:
        pairs = zip(told["prompt_token_ids"][1:], told["prompt_logprobs"][1:], strict=True)
        prompts = [row[str(token)] for token, row in pairs]
    return [
        Answer(
            one["text"],
            one["token_ids"],
            one["finish_reason"],
            one["logprobs"]
            and [row[str(i)] for i, row in zip(one["token_ids"], one["logprobs"], strict=True)],
            prompts,
            one["stats"]["drafted"],
            one["error"],
            one["warnings"],
        )
        for one in told["completions"]
    ]


def loading(model: Model) -> list[str]:
    return ["--dtype", model.dtype, *(["--cache"] if model.kind == "int4" else [])]


def flags(given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Parameters as options."""
    several = {"stop": "stop", "bad_token_ids": "bad-token-id", "stop_token_ids": "stop-token-id"}
    for name, value in given.items():
        if name in several:
            for each in value:
                yield from (f"--{several[name]}", str(each))
        elif name == "logit_bias":
            for token, bias in value.items():
                yield from ("--logit-bias", f"{token}={bias}")
        elif name == "grammar":
            yield from ("--regex", value.source)
        elif name == "prediction":
            (folder / "prediction").write_text(value, encoding="utf-8")
            yield from ("--prediction", str(folder / "prediction"))
        else:
            yield from (f"--{'completions' if name == 'n' else name.replace('_', '-')}", str(value))


def command(words: Sequence[str]) -> str:
    """What a command prints. Raises `Refusal` where it ends with a sentence and exit code 2."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())  # it would be read too
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdin = before
    said = err.getvalue().strip()
    if code == 2:
        raise Refusal(said.removeprefix("error: "))
    if code:
        raise RuntimeError(f"exit code {code}: {said}")
    return out.getvalue()


# --- batches -------------------------------------------------------------------------------------


def batch(model: Model, cells: Sequence[Cell], ray: bool = False) -> Asked:
    """`draftproof batch`: a line for every prompt of every cell, in one file."""
    lines, bad = [], {}
    for cell in cells:
        try:
            for at, (text, given) in enumerate(asked(model, cell)):
                body = {"model": "m", "prompt": text, **body_of(cell, given)}
                name = f"{cell.name}#{at}"
                lines.append({"custom_id": name, "method": "POST", "url": "/v1/completions"})
                lines[-1]["body"] = body
        except ValueError as error:
            bad[cell] = error
    with tempfile.TemporaryDirectory() as folder:
        asking, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        asking.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        words = ["batch", str(asking), "--out", str(out), "--target", model.name, *loading(model)]
        words += [*model.words(cells[0].method), "--max-batch", "3", "--quiet"]
        words += ["--ray", "1", "--threads", "1"] if ray else []
        refused = None
        try:
            command(words)
        except RuntimeError:  # some line has an error
            pass
        except Refusal as error:
            refused = error
        found = {}
        for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
            told = json.loads(line)
            found[told["custom_id"]] = told["response"]
    for cell in cells:
        if cell in bad or refused is not None:
            yield cell, bad.get(cell, refused)
        else:
            yield tried(cell, lambda cell=cell: of_lines(model, cell, found))


def of_lines(model: Model, cell: Cell, found: Mapping[str, Any]) -> list[Answer]:
    answers = []
    for at, (text, given) in enumerate(asked(model, cell)):
        told = found[f"{cell.name}#{at}"]
        answers += of_body(model, text, given, told["status_code"], told["body"])
    return answers


def on_ray(model: Model, cells: Sequence[Cell]) -> Asked:
    os.environ["RAY_ADDRESS"] = "local"
    return batch(model, cells, ray=True)


DOORS: Mapping[str, Callable[[Model, Sequence[Cell]], Asked]] = {
    PYTHON: python,
    STREAM: stream,
    SHELL: shell,
    DROP_IN: drop_in,
    SERVER: server,
    BATCH: batch,
    RAY: on_ray,
}
