"""Commands by name, and hints for the words and options of other programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftproof.cli import (
    arguments,
    batch_arguments,
    export_arguments,
    load_arguments,
    serving_arguments,
    training_arguments,
    tuning_arguments,
    values,
)

COMMANDS: dict[str, Callable[..., int]] = {
    "generate": arguments.generate,
    "chat": arguments.chat,
    "serve": serving_arguments.serve,
    "load": load_arguments.load,
    "batch": batch_arguments.batch,
    "bench": arguments.bench,
    "tune": tuning_arguments.tune,
    "certify": arguments.certify,
    "quality": arguments.quality,
    "convert": arguments.convert,
    "export": export_arguments.export,
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
    **dict.fromkeys(("server", "api_server", "llama-server"), "write draftproof serve MODEL"),
    "run-batch": "write draftproof batch INPUT --out OUTPUT",
    "run": f"{CHAT}, draftproof generate MODEL continues a text",
    **dict.fromkeys(("pull", "download", "install"), FETCHED),
    "benchmark": "write draftproof bench MODEL",
    "perplexity": "write draftproof quality MODEL, which tells it of every precision",
    "complete": "write draftproof generate MODEL",
    "completion": "write draftproof generate MODEL, or --install-completion for your shell",
    "verify": "write draftproof certify MODEL",
    "test": "write draftproof certify MODEL",
    "finetune": "write draftproof train draft MODEL, or draftproof train medusa MODEL",
    "quantize": "write draftproof convert MODEL, or add --dtype int4 to any command",
    **dict.fromkeys(("cli", "main", "llama-cli"), f"{CHAT}, or write draftproof generate MODEL"),
    "collect-env": "write draftproof info",
    "version": "write draftproof --version",
    "help": "write draftproof --help, or draftproof generate --help",
}
OF_TRAIN = {  # of draftproof train
    **dict.fromkeys(
        ("eagle", "eagle2", "eagle3", "mtp", "mlp-speculator", "heads"),
        "write draftproof train medusa MODEL, the heads that there are",
    ),
    **dict.fromkeys(("distill", "distillation", "student"), "write draftproof train draft MODEL"),
    "early-exit": "write draftproof train draft MODEL --exit-layer N",
    **dict.fromkeys(("lora", "sft", "dpo"), "a target stays as it is, but for medusa --joint"),
}
THREADS, CONTEXT = "write --threads N", "write --max-length N"
FIRST = "the model is the first argument: "
OF_MODELS = "-m", "--model", "--model-name-or-path"
NEEDLESS = "it is decided by itself: drop it"
ONE_DEVICE = "a model runs on one device: drop it"
OTHER_LAWS = "write --top-p P, --min-p P or --repetition-penalty X"
OPTIONS = {  # of other programs, and what to write here
    **dict.fromkeys((*OF_MODELS, "-p", "--prompt"), f"{FIRST}draftproof generate MODEL PROMPT"),
    **dict.fromkeys(("-f", "--file"), "write --prompt-file FILE"),
    "-n": "write --max-tokens N, or --completions N for several answers",
    **dict.fromkeys(
        ("--n-predict", "--predict", "--num-predict", "--max-new-tokens", "--max_new_tokens"),
        "write --max-tokens N",
    ),
    "--temp": "write --temperature T",
    "--do-sample": "a temperature above 0 samples: write --temperature T",
    **dict.fromkeys(("--n", "--num-return-sequences"), "write --completions N"),
    "--num-beams": "beam search is not supported: write --completions N for several answers",
    "--eos-token-id": "the model's own end tokens end an answer: write --stop TEXT for others",
    "--generation-config": "write --model-defaults for what the model's own says",
    "--stream": "an answer is shown as it is written: drop it",
    "--attn-implementation": "attention is draftproof's own: drop it",
    **dict.fromkeys(("--load-in-8bit", "--quantization"), "write --dtype int8"),
    "--load-in-4bit": "write --dtype int4",
    "--torch-dtype": "write --dtype NAME",
    "--repeat-penalty": "write --repetition-penalty X",
    **dict.fromkeys(("-t", "--n-threads"), THREADS),
    **dict.fromkeys(("-c", "--ctx-size", "--max-model-len", "--context-length"), CONTEXT),
    **dict.fromkeys(
        ("-ngl", "--n-gpu-layers", "--gpu-layers"), "write --device cuda, for the whole model"
    ),
    **dict.fromkeys(("-hf", "--hf-repo"), "it is MODEL: draftproof generate owner/name:Q4_K_M"),
    **dict.fromkeys(
        ("-st", "-cnv", "--conversation", "--single-turn", "-i"), "write draftproof chat MODEL"
    ),
    **dict.fromkeys(("-sys", "--system-prompt"), "write --system TEXT"),
    **dict.fromkeys(("--tensor-parallel-size", "--tp", "-tp"), ONE_DEVICE),
    **dict.fromkeys(("--pipeline-parallel-size", "-pp"), ONE_DEVICE),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--cpu-offload-gb", "--numa"), ONE_DEVICE),
    **dict.fromkeys(("--mirostat", "--typical", "--samplers", "--dry-multiplier"), OTHER_LAWS),
    **dict.fromkeys(("--lora", "--enable-lora"), "merge it into the model first, with peft"),
    "--outtype": "write --dtype NAME",
    **dict.fromkeys(("-v", "--verbose", "--perf"), "write --stats for what a text took"),
    "--no-display-prompt": "the prompt is not shown: drop it",
    **dict.fromkeys(("-e", "--escape"), "a file has its own line ends: write --prompt-file FILE"),
    "-help": "write -h",
    "--hf-token": "set the variable HF_TOKEN",
    "--tokenizer": "the model's own is taken: drop it",
    **dict.fromkeys(("-md", "--model-draft", "--assistant-model"), "write --draft MODEL"),
    "--draft-model": "write --draft MODEL",
    "--draft-p-min": "write --min-confidence P",
    "--lookup": "write --method ngram",
    **dict.fromkeys(("--draft-max", "--draft-n", "--draft-tokens"), "write --num-draft-tokens N"),
    "--prompt-lookup-num-tokens": "write --method ngram --num-draft-tokens N",
    "--speculative-config": "write --method ngram, or --method draft --draft MODEL",
    "--num-speculative-tokens": "write --num-draft-tokens N",
    "--speculative-model": "write --draft MODEL",
    **dict.fromkeys(("--speculative-algorithm", "--spec-type"), "write --method NAME"),
    "--grammar-file": "write --grammar FILE",
    **dict.fromkeys(("-j", "--json-schema-file", "-jf"), "write --json-schema FILE"),
    "--format": "write --json-schema FILE",
    "-s": "write --seed N",
    **dict.fromkeys(("--no-mmap", "--mlock", "-fa", "--flash-attn", "--enforce-eager"), NEEDLESS),
    **dict.fromkeys(("--kv-cache-dtype", "--load-format", "--jinja"), NEEDLESS),
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--no-warmup"), NEEDLESS),
    **dict.fromkeys(("--cont-batching", "-cb", "--block-size", "--swap-space"), NEEDLESS),
    **dict.fromkeys(("--enable-chunked-prefill", "--max-num-batched-tokens"), NEEDLESS),
    **dict.fromkeys(("--async-scheduling", "--compilation-config"), NEEDLESS),
    "--guided-decoding-backend": NEEDLESS,
}
OF_THE_MODEL = "temperature", "top_k", "top_p", "min_p", "repetition_penalty"  # in a chat
ONCE = "write draftproof generate MODEL PROMPT --chat"
TOO_MANY = {  # words; as they are typed after `ollama run MODEL`
    "chat": f"chat takes messages as they are typed; to ask once {ONCE}",
    "generate": 'a prompt is one argument: write it in quotation marks, "like this"',
}
OF_TRAINING = {
    **dict.fromkeys(("--learning-rate", "--lr"), "write --rate X"),
    **dict.fromkeys(("--batch-size", "--per-device-train-batch-size"), "write --rows N"),
    **dict.fromkeys(("--epochs", "--num-train-epochs", "--max-steps"), "write --steps N"),
    "--gradient-accumulation-steps": "write --accumulate N",
    "--output-dir": "write --out FOLDER",
    "--dataset": "write --data FILE",
}
OF_COMMANDS = {  # where an option means something else
    "chat": {
        **dict.fromkeys(("-p", "--prompt", "-f", "--file"), ONCE),
        "--json": f"{ONCE} --json",
        **dict.fromkeys(("--color", "--color-drafts"), "write --colour-drafts"),
    },
    "serve": {
        **dict.fromkeys(("--served-model-name", "--alias", "-a"), "write --served-name NAME"),
        **dict.fromkeys(
            ("--gpu-memory-utilization", "--mem-fraction-static"),
            "write --kv-memory BYTES, of keys and values",
        ),
        "--enable-prefix-caching": "prompts are cached but for --no-prefix-cache: drop it",
        **dict.fromkeys(
            ("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"),
            "the form is read from the model's template: drop it",
        ),
        **dict.fromkeys(("--metrics", "--slots"), "it is there, at /metrics: drop it"),
        "--no-enable-prefix-caching": "write --no-prefix-cache",
        "--api-key-file": 'write --api-key "$(cat FILE)"',
        **dict.fromkeys(("--log-disable", "--uvicorn-log-level"), "write --quiet"),
        "--disable-log-stats": "what it does stands at /metrics alone: drop it",
        "--disable-log-requests": "a line for each call goes to standard error: drop it",
        "--embedding": "embeddings are not made here",
        **dict.fromkeys(("--max-num-seqs", "-np", "--parallel"), "write --max-batch N"),
        "--max-num-queued-reqs": "write --max-queue N",
        "--allowed-origins": "write --cors ORIGIN",
    },
    "load": {
        **dict.fromkeys(
            ("--url", "--target", "--base-url"), "the address is the first argument: load URL"
        ),
        **dict.fromkeys(("-m", "--served-model-name"), "write --model NAME"),
        **dict.fromkeys(("-p", "--prompt", "-f", "--file"), "write --prompts FILE"),
        **dict.fromkeys(("-c", "--concurrency", "--max-concurrency"), "write --clients N"),
        "--rate": "write --arrivals poisson --request-rate X",
        "--request-count": "write --calls N",
        "-n": "write --max-tokens N, and --calls N for the number of calls",
    },
    "batch": {
        **dict.fromkeys(("-i", "--input-file"), "the file is the first argument: batch INPUT"),
        **dict.fromkeys(("-o", "--output-file"), "write --out FILE"),
        **dict.fromkeys(OF_MODELS, "the lines name the model, or write --target MODEL"),
    },
    "export": {
        **dict.fromkeys(
            (*OF_MODELS, "--target"),
            f"{FIRST}draftproof export MODEL --draft DRAFT --for ENGINE",
        ),
        **dict.fromkeys(("--engine", "--format", "--to"), "write --for ENGINE"),
    },
    **dict.fromkeys(("medusa", "draft"), OF_TRAINING),
    "convert": dict.fromkeys(("--outfile", "-o", "--output"), "write --out FILE"),
    "bench": {
        **dict.fromkeys(("-p", "--prompt", "-f", "--file"), "write --prompts FILE"),
        **dict.fromkeys(("--dataset", "--dataset-name", "--dataset-path"), "write --prompts FILE"),
        **dict.fromkeys(("--output-len", "--random-output-len"), "write --max-tokens N"),
        "--input-len": "write --prompts FILE, with prompts of that length",
        "-n": "write --max-tokens N, and --num-prompts N for the number of prompts",
        **dict.fromkeys(("--json", "--picture"), "it is written to the folder of --out: drop it"),
    },
}


HELP = {"help_option_names": ["--help", "-h"]}


class Group(TyperGroup):
    """Commands, with a hint for what other programs call them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        first = args[0] if args else ""
        try:
            return super().parse_args(ctx, args)
        except USAGE as error:
            if first.startswith("-") and getattr(error, "option_name", None):
                ctx.fail(
                    f"{first} stands before any command: write draftproof generate MODEL PROMPT"
                )
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = OF_TRAIN if self.name == "train" else ELSEWHERE
        if args[0] not in self.commands and args[0] in known:
            ctx.fail(f"there is no command {args[0]!r}: {known[args[0]]}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command, with a hint for options that other programs have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        shown: Any = self.params if self.name == "chat" else ()
        for each in shown:
            if each.name in OF_THE_MODEL:
                each.show_default = "the model's"

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        given = list(args)  # they are taken off the list as they are read
        try:
            rest = super().parse_args(ctx, args)
        except USAGE as error:
            known = dict(OPTIONS)
            if ctx.info_name != "generate" and any(each.name == "model" for each in self.params):
                known |= dict.fromkeys(OF_MODELS, f"{FIRST}{ctx.command_path} MODEL")
            known |= OF_COMMANDS.get(ctx.info_name, {})
            short = getattr(error, "option_name", None) or "-"
            words = [word.partition("=")[0] for word in given if word.startswith("-")]
            words = [each for each in words if each.startswith(short) or each[:2] == "-h"]
            own = {word for param in self.params for word in (*param.opts, *param.secondary_opts)}
            if any(word[len(short) :].isalpha() for word in words):
                short = ""  # of -ngl the error knows -n, which means something else
            for name in (*words, short):
                if name in known and name not in own:
                    ctx.fail(f"there is no option {name}: {known[name]}")
            if "extra argument" in str(error) and ctx.info_name in TOO_MANY:
                ctx.fail(TOO_MANY[ctx.info_name])
            raise
        values.check(ctx, self.params)
        if any(each.name == "model" and each.param_type_name == "argument" for each in self.params):
            _refuse_command(ctx)
        return rest


def _refuse_command(ctx: Any) -> None:
    """Refuses a command's name where a model is meant, unless something of that name lies here."""
    model = None if ctx.resilient_parsing else ctx.params["model"]  # a shell may complete the line
    for path, command in every(ctx.find_root().command).items():
        if model == path.partition(" ")[0] and not Path(model).exists():
            takes = [f" {p.metavar}" for p in command.params if p.param_type_name == "argument"]
            ctx.fail(f"{model!r} is a command: write draftproof {path}{''.join(takes[:1])}")


def every(group: Any, above: Sequence[str] = ()) -> dict[str, Any]:
    """The commands of a group and of those in it by their names: "train medusa"; none of others."""
    named: dict[str, Any] = {}
    for name, command in getattr(group, "commands", {}).items():
        path = (*above, name)
        if isinstance(command, TyperGroup):
            named |= every(command, path)
        else:
            named[" ".join(path)] = command
    return named
