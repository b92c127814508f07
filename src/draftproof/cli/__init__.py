"""The command line: `draftproof generate`, `chat`, `bench`, `certify`, `convert`, `info` and so on.

Arguments become calls of the package, results become text, a table or JSON. Whatever a user can do
wrong ends in one sentence on standard error and exit code 2; an interrupt in what was written so
far and 130. Knows no model, and no method beyond its name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import shellingham  # type: ignore[import-untyped]  # typer's own way to know the shell
import typer
from typer.main import get_command

import draftproof
from draftproof import interrupts, native
from draftproof.cli import commands, streams

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script; `arguments` without the program's name. Always ends in `SystemExit`."""
    with interrupts.unsaid(), streams.kept():
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """The exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
            if words[0] in ("--install-completion", "--show-completion"):
                _check_shell()
            code: int = group().main(words, prog_name="draftproof", standalone_mode=False) or 0
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except BrokenPipeError:  # whoever reads our output has seen enough
        return 1  # as typer says when it notices first
    except commands.USAGE as error:
        said = error.format_message()  # nothing, where it has shown the help of a group instead
        return _refuse(said) if said else 0
    except KeyboardInterrupt:
        return 130
    except _refused() as error:
        return _refuse(str(error) or "out of memory")


def _refused() -> tuple[type[BaseException], ...]:
    """What is told in one sentence; torch has an error of its own, if it was loaded."""
    torch = sys.modules.get("torch")
    ours = (ValueError, MemoryError, OSError, ImportError)
    return (*ours, torch.OutOfMemoryError) if torch is not None else ours


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
        from importlib.metadata import version as version_of

        try:
            kernels = native.kernels()
        except native.Missing:
            kernels = "not built"
        print(
            f"draftproof {draftproof.__version__} (torch {version_of('torch')}, "
            f"transformers {version_of('transformers')}, kernels: {kernels})"
        )
        raise typer.Exit


app = typer.Typer(cls=commands.Group, context_settings=commands.HELP)
train = typer.Typer(
    name="train", cls=commands.Group, help="Train what drafts for a model.", no_args_is_help=True
)


@train.callback()
def _train() -> None: ...


@app.callback()
def _about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Makes a language model write faster without changing what it writes."""


for name, function in commands.COMMANDS.items():
    app.command(name, cls=commands.Command)(function)
for name, function in commands.TRAIN.items():
    train.command(name, cls=commands.Command)(function)
app.add_typer(train)


@cache  # typer reads the annotations of all commands, which takes a tenth of a second
def group() -> Any:
    """The command line with every command in it."""
    return get_command(app)
