"""Commands by name, and hints for the words and options of other programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftproof.cli import arguments, training_arguments

COMMANDS: dict[str, Callable[..., int]] = {
    "generate": arguments.generate,
    "chat": arguments.chat,
    "bench": arguments.bench,
    "certify": arguments.certify,
    "info": arguments.info,
    "demo": arguments.demo,
}
TRAIN: dict[str, Callable[..., int]] = {
    "medusa": training_arguments.medusa,
    "draft": training_arguments.draft,
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


class Command(TyperCommand):
    """A command, with a hint for options that other programs have."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except USAGE as error:
            name = getattr(error, "option_name", None)
            own = {word for param in self.params for word in (*param.opts, *param.secondary_opts)}
            if name in OPTIONS and name not in own:
                ctx.fail(f"there is no option {name}: {OPTIONS[name]}")
            raise


def every(group: Any, above: Sequence[str] = ()) -> dict[str, Any]:
    """The commands of a group and of those in it by their names: "train medusa"."""
    named: dict[str, Any] = {}
    for name, command in group.commands.items():
        path = (*above, name)
        if isinstance(command, TyperGroup):
            named |= every(command, path)
        else:
            named[" ".join(path)] = command
    return named
