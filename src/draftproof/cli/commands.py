"""Commands by name. One is imported when it runs or shows its own help: models take seconds.

Knows where a command lies and its line in the help; what it does is the command's own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

COMMANDS = {  # name: module and function, and the first line of what it says of itself
    "generate": ("generate:generate", "Continue a prompt; text is written as it comes."),
    "chat": ("chat:chat", "Talk with a model; /help lists what can be said besides messages."),
    "bench": (
        "bench:bench",
        "Compare draftproof with what you use today, on your model: same weights, same prompts.",
    ),
    "certify": ("certify:certify", "Prove on your model that drafting changes nothing."),
    "info": ("info:info", "Tell versions, devices, and what is available or why not."),
    "demo": (
        "demo:demo",
        "Watch the bundled models write the same Python code, plainly and faster.",
    ),
}
TRAIN = {
    "medusa": (
        "train_medusa:medusa",
        "Medusa heads for a target: trained, their tree calibrated, and served once to be sure.",
    ),
    "draft": (
        "train_draft:draft",
        "A small model that drafts for a target: distilled, and served once to be sure.",
    ),
}
USAGE: Any = typer.BadParameter.__bases__[0]  # what typer raises for wrong usage
CHAT = "draftproof chat MODEL talks with it"
FETCHED = "a model is fetched when it is first used: try draftproof generate MODEL"
ELSEWHERE = {  # words of other programs, and what to write here
    "serve": f"there is no server; {CHAT}, and draftproof.LLM serves any number of threads",
    "server": f"there is no server; {CHAT}, and draftproof.LLM serves any number of threads",
    "run": f"{CHAT}, draftproof generate MODEL continues a text",
    "pull": FETCHED,
    "download": FETCHED,
    "install": FETCHED,
    "benchmark": "write draftproof bench MODEL",
    "perplexity": "write draftproof bench MODEL for speed, draftproof certify MODEL for proof",
    "complete": "write draftproof generate MODEL",
    "completion": "write draftproof generate MODEL, or --install-completion for your shell",
    "verify": "write draftproof certify MODEL",
    "test": "write draftproof certify MODEL",
    "finetune": "write draftproof train draft MODEL, or draftproof train medusa MODEL",
    "quantize": "weights are quantised at load: add --dtype int8 to any command",
    "version": "write draftproof --version",
    "help": "write draftproof --help, or draftproof generate --help",
}
THREADS, CONTEXT = "write --threads N", "write --max-length N"
FIRST = "the model is the first argument: draftproof generate MODEL PROMPT"
OPTIONS = {  # of other programs, and what to write here
    "-m": FIRST,
    "--model": FIRST,
    "-p": FIRST,
    "--prompt": FIRST,
    "-f": "write --prompt-file FILE",
    "--file": "write --prompt-file FILE",
    "-n": "write --max-tokens N, or --completions N for several answers",
    **dict.fromkeys(
        ("--n-predict", "--predict", "--num-predict", "--max-new-tokens"), "write --max-tokens N"
    ),
    "--temp": "write --temperature T",
    "--repeat-penalty": "write --repetition-penalty X",
    "-t": THREADS,
    "-c": CONTEXT,
    "--ctx-size": CONTEXT,
    "--max-model-len": CONTEXT,
    "--n-gpu-layers": "write --device cuda, for the whole model",
    "--tensor-parallel-size": "a model runs on one device: drop it",
    "--model-draft": "write --draft MODEL",
    "--draft-max": "write --num-draft-tokens N",
    "--speculative-config": "write --method ngram, or --method draft --draft MODEL",
    "--num-speculative-tokens": "write --num-draft-tokens N",
    "--quantization": "write --dtype int8",
}


class Group(TyperGroup):
    """Commands, with a hint for what other programs call them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and args[0] in ELSEWHERE:
            ctx.fail(f"there is no command {args[0]!r}: {ELSEWHERE[args[0]]}")
        return super().resolve_command(ctx, args)


class Quietly(TyperCommand):
    """A command; the libraries that it uses say nothing of their own on a terminal."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except USAGE as error:
            name = getattr(error, "option_name", None)  # only an unknown option has one
            if name in OPTIONS and "no such option" in error.format_message().lower():
                ctx.fail(f"there is no option {name}: {OPTIONS[name]}")
            raise

    def invoke(self, ctx: Any) -> Any:
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry
        transformers_logging.disable_progress_bar()
        if sys.stderr is not None and sys.stderr.isatty():
            enable_progress_bars()  # a download is worth watching
        return super().invoke(ctx)


class Unloaded(TyperCommand):
    """Stands for a command in the help above it, and loads it once it is named."""

    def __init__(self, name: str, place: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self.place = place

    def load(self) -> Any:
        """The command itself."""
        module, function = self.place.split(":")
        alone = typer.Typer(add_completion=False)
        found = getattr(import_module(f"draftproof.cli.{module}"), function)
        alone.command(self.name, cls=Quietly)(found)
        return get_command(alone)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)


def add(group: Any, commands: dict[str, tuple[str, str]]) -> None:
    """Add these to a group, unloaded."""
    for name, (place, help) in commands.items():
        group.add_command(Unloaded(name, place, help))


def every(group: Any, above: Sequence[str] = ()) -> dict[str, Any]:
    """The commands of a group and of those in it, loaded, by their names: "train medusa"."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        path = (*above, name)
        if isinstance(command, TyperGroup):
            found |= every(command, path)
        else:
            found[" ".join(path)] = command.load()
    return found
