"""The command line: `draftproof generate`, `chat`, `bench`, `certify`, `train`, `info`, `demo`.

Arguments become calls of the package, results become text, a table or JSON. Whatever a user can do
wrong ends in one sentence on standard error and exit code 2; an interrupt in what was written so
far and 130. Knows no model, and no method beyond its name.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import shellingham  # type: ignore[import-untyped]  # typer's own way to know the shell
import torch
import transformers
import typer
from huggingface_hub.utils.tqdm import enable_progress_bars
from rich.console import Console

import draftproof
from draftproof import native
from draftproof.bundled.prompts import PROMPTS
from draftproof.cli.bench import bench
from draftproof.cli.certify import certify
from draftproof.cli.chat import chat
from draftproof.cli.generate import generate
from draftproof.cli.info import info
from draftproof.cli.train_draft import draft
from draftproof.cli.train_medusa import medusa
from draftproof.demo import show

USAGE: Any = typer.BadParameter.__bases__[0]  # what typer raises for wrong usage

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")

app = typer.Typer(pretty_exceptions_enable=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script; `arguments` without the program's name. Always ends in `SystemExit`."""
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry
    transformers.utils.logging.disable_progress_bar()
    if sys.stderr is not None and sys.stderr.isatty():
        enable_progress_bars()  # a download is worth watching
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
            if words[0] in ("--install-completion", "--show-completion"):
                _check_shell()
            code = app(words, prog_name="draftproof", standalone_mode=False) or 0
            _flush()
    except BrokenPipeError:  # whoever reads our output has seen enough
        code = 1  # as typer says when it notices first
    except USAGE as error:
        said = error.format_message()  # nothing, where it has shown the help of a group instead
        code = _refuse(said) if said else 0
    except (ValueError, MemoryError, torch.OutOfMemoryError, OSError, ImportError) as error:
        code = _refuse(str(error) or "out of memory")
    try:
        _flush()
    except OSError:  # nothing can be written any more; do not let the interpreter try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _refuse(reason: str) -> int:
    print("error:", " ".join(reason.split()), file=sys.stderr)
    return 2


def _check_shell() -> None:
    """Refuse a shell that cannot be told or completed for: typer would say so in its own way."""
    try:
        name = shellingham.detect_shell()[0]
    except (shellingham.ShellDetectionFailure, RuntimeError):
        name = "unknown"
    if name not in SHELLS:
        raise ValueError(f"there is no completion for this shell ({name}): use {', '.join(SHELLS)}")


def _version(wanted: bool) -> None:
    if wanted:
        try:
            kernels = native.kernels()
        except native.Missing:
            kernels = "not built"
        print(
            f"draftproof {draftproof.__version__} (torch {torch.__version__}, "
            f"transformers {transformers.__version__}, kernels: {kernels})"
        )
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Makes a language model write faster without changing what it writes."""


app.command()(generate)
app.command()(chat)
app.command()(bench)
app.command()(certify)
app.command()(info)
train = typer.Typer(name="train", help="Train what drafts for a model.", no_args_is_help=True)
train.command()(medusa)
train.command()(draft)
app.add_typer(train)


@app.command()
def demo(
    method: Annotated[
        list[str] | None, typer.Option(help="draft unless given; each of several is raced.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="How many of the prompts.")] = len(PROMPTS),
    max_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    dtype: Annotated[
        str | None, typer.Option(help="Unless given: bfloat16 natively, float32 on torch.")
    ] = None,
    runner: Annotated[str, typer.Option(help="auto, native or torch.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, at the end.")] = False,
) -> int:
    """Watch the bundled models write the same Python code, plainly and faster."""
    return show.demo(
        show.Options(
            tuple(method or ["draft"]),
            prompts,
            max_tokens,
            temperature,
            seed,
            dtype,
            runner,
            threads,
            as_json,
        ),
        Console(),
    )
