"""Most of the published figures measured again, one program after another, with one commit.

    python scripts/measure.py              all that are not there yet; goes on where it was stopped
    python scripts/measure.py --only methods --only bench --list

What a run writes takes the place of what `docs` had, and `docs/aims/runs.json` says when it
was run, with which commit, on which processor and by which command. A run counts as long as
nothing under `src` has changed. It needs `make real`, `benchmarks/peers/setup_peers.sh build/peers`
and a machine with AVX-512 that does nothing else meanwhile. `python scripts/figures.py` then writes
the pages. Not among them: cells and hindsight of `benchmarks/never_slower`, and what needs drafts
and heads of SmolLM2 (`make real-drafts`).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer
from measured import ROOT
from rich.console import Console

from draftproof import clock
from draftproof.out_folders import whole

BUILD, REAL, INFLATED = "build/figures", "build/smollm2", "build/peers/models/inflated"
PEERS = "benchmarks/peers/cpu_peers.py"
SHAPE = "--parts passes,prompts --rounds 5 --passes 1,4,8,12,16,32"
WRITING = "--target inflated --parts plain,speculative --rounds 5 --num-prompts 3 --max-tokens 96"
OTHERS = "--sides draftproof,openvino,llama.cpp"
BENCH = "-m draftproof bench --rounds 5 --ignore-eos"
BOTH = f"{BENCH} bundled --draft bundled --against transformers --temperature 0 --temperature 0.7"
LARGE = f"{BENCH} bundled --draft bundled --against transformers --inflate Qwen3-0.6B"
METHODS = "benchmarks/methods.py --max-tokens 96"
SLOWER = "benchmarks/never_slower"
PUBLISHED = "build/gguf/SmolLM2-135M-Instruct"  # a GGUF file, and its kinds by llama.cpp
OURS = "build/gguf/smollm2"  # GGUF files of the model, by `draftproof convert`


class Run(NamedTuple):
    """file: under docs, without its ending. `{out}`: what the program writes, without its own."""

    file: str
    command: str

    @property
    def words(self) -> list[str]:
        given = [sys.executable, *shlex.split(self.command)]
        if "{out}" not in self.command:
            return [*given, "--out", f"{BUILD}/{self.file}"]
        return [word.format(out=f"{BUILD}/{self.file}/out") for word in given]


def runs() -> Iterator[Run]:
    for precision in ("bf16", "int8", "int4"):
        target = f"--target Qwen3-0.6B --precision {precision}"
        yield Run(f"cpu_peers/passes-Qwen3-0.6B-{precision}", f"{PEERS} {target} {SHAPE}")
    yield Run("cpu_peers/passes-Llama-3.2-1B-bf16", f"{PEERS} --target Llama-3.2-1B {SHAPE}")
    code = "--target smollm2 --prompts humaneval --num-prompts 3 --max-tokens 96 --lengths 4,8"
    yield Run("cpu_peers/smollm2-bf16", f"{PEERS} {code} --passes 1,4,8,12,16,32")
    parts = f"--precision int8 --parts passes,plain,prompts --passes 1,8,12,16 {OTHERS}"
    yield Run("cpu_peers/smollm2-int8", f"{PEERS} {code} {parts}")
    for precision in ("bf16", "int8"):
        of = f"{PEERS} {WRITING} --precision {precision}"
        yield Run(f"cpu_peers/writing-inflated-{precision}", f"{of} {OTHERS}")
        drawn = "--temperature 0.7 --sides draftproof,openvino"
        yield Run(f"cpu_peers/writing-inflated-{precision}-sampled", f"{of} {drawn}")
    of = f"{PEERS} {WRITING} --lengths 3,5,8"
    yield Run("cpu_peers/writing-inflated-bf16-transformers", of)
    all_methods = "--method none,ngram,draft,ngram+draft"
    yield Run(
        "benchmarks/bundled-pair-bfloat16-native",
        f"{BOTH} {all_methods} --num-prompts 4 --max-tokens 128 --dtype bfloat16",
    )
    yield Run(
        "benchmarks/bundled-pair-float32",
        f"{BOTH} {all_methods} --num-prompts 8 --max-tokens 64 --dtype float32",
    )
    yield Run(
        "benchmarks/inflated-pair-bfloat16-held-out",
        f"{LARGE} {all_methods} --num-prompts 4 --max-tokens 64 --dtype bfloat16",
    )
    yield Run(
        "benchmarks/inflated-pair-bfloat16-HumanEval",
        f"{LARGE} {all_methods} --prompts humaneval --num-prompts 3 --max-tokens 48"
        " --dtype bfloat16",
    )
    yield Run(
        "benchmarks/inflated-pair-bfloat16-native-batches",
        f"{BENCH} {INFLATED}/target --draft {INFLATED}/draft --method none,draft --num-prompts 8"
        " --max-tokens 48 --batch 1 --batch 8 --runner native --dtype bfloat16",
    )
    pair = f"--target {INFLATED}/target --draft {INFLATED}/draft --name inflated"
    for temperature in ("0", "0.7"):
        given = f"{METHODS} --temperature {temperature}"
        yield Run(f"methods/bundled-bfloat16-{temperature}", f"{given} --num-prompts 8")
        few = f"{given} {pair} --num-prompts 4 --max-tokens 64"
        yield Run(f"methods/inflated-bfloat16-{temperature}", few)
    yield Run("never_slower/deciding", f"{SLOWER}/deciding.py --out {{out}}.json")
    yield Run("never_slower/gap", f"{SLOWER}/reader.py gap --out {{out}}.json")
    yield Run("never_slower/latency", f"{SLOWER}/reader.py latency --out {{out}}.json")
    yield Run("never_slower/recorded", f"{SLOWER}/recorded.py --out {{out}}.json")
    yield Run("structured/smollm2", f"benchmarks/structured.py {REAL} --out {{out}}.json")
    kinds = " ".join(f"{PUBLISHED}.{kind}.gguf" for kind in ("Q4_1", "Q4_0", "Q4_K_M", "Q8_0"))
    yield Run("formats/gguf-files", f"benchmarks/peers/gguf_files.py {kinds} --out {{out}}.json")
    served = f"benchmarks/peers/servers.py --out {{out}}.json {OURS}-q8_0.gguf"
    yield Run("serving/servers", f"{served} {OURS}-bf16.gguf {PUBLISHED}.Q4_1.gguf")
    yield Run("serving/servers-64", f"{served} --clients 64 --calls 64 --rounds 5")
    encoder = "benchmarks/encoder_decoder.py"
    yield Run("encoder_decoder/bundled-mender", f"{encoder} --part mender")
    yield Run("encoder_decoder/pass", f"{encoder} --part pass")
    yield Run("encoder_decoder/planted", f"{encoder} --part table")


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Part of a file's name; repeatable, any may match.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print what would be run.")] = False,
    minutes: Annotated[float, typer.Option(help="Begin no further run after so many.")] = 1e9,
) -> None:
    """Measure, replace, and write down; a run that fails is told, and the next one begins."""
    console, until = Console(), time.monotonic() + 60 * minutes
    commit, sources = _told("rev-parse", "--short", "HEAD"), _told("rev-parse", "HEAD:src")
    if not clock.processor().endswith("AVX512"):
        raise typer.BadParameter(f"files are of AVX-512, and this is {clock.processor()}")
    if not listed and _told("status", "--porcelain", "src", "benchmarks"):
        raise typer.BadParameter("a figure names its commit: commit what is changed first")
    kept, failed = ROOT / "docs" / "aims" / "runs.json", False
    chosen = [run for run in runs() if not only or any(part in run.file for part in only)]
    if not chosen:
        raise typer.BadParameter(f"no run is called {', '.join(only or ())}: see --list")
    for run in chosen:
        found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        there = found.get(run.file, {})
        if (there.get("sources"), there.get("processor")) == (sources, clock.processor()):
            continue
        command = shlex.join(["python", *run.words[1:]])
        if listed or time.monotonic() > until:
            console.print(command, highlight=False, soft_wrap=True)
            continue
        began = time.monotonic()
        console.print(f"{time.strftime('%H:%M')} {run.file}", highlight=False)
        if not _made(run):
            console.print(f"failed: {run.file}", highlight=False)
            failed = True
            continue
        found[run.file] = {
            "commit": commit,
            "sources": sources,
            "date": time.strftime("%Y-%m-%d"),
            "processor": clock.processor(),
            "minutes": round((time.monotonic() - began) / 60, 1),
            "command": re.sub(r" --out \S+", "", command),
        }
        with whole(kept) as part:
            part.write_text(json.dumps(found, indent=1) + "\n")
    raise typer.Exit(1 if failed else 0)


def _made(run: Run) -> bool:
    """Runs it, and puts its JSON file and pictures where the pages look for them."""
    folder, file = ROOT / BUILD / run.file, ROOT / "docs" / run.file
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not _files_are_there(run.words) or subprocess.run(run.words, cwd=ROOT).returncode:
        return False
    if len(written := list(folder.rglob("*.json"))) != 1:
        return False
    shutil.copy(written[0], file.with_name(f"{file.name}.json"))
    for picture in written[0].parent.glob("*.png"):
        rest = picture.name.removeprefix(written[0].stem)
        shutil.copy(picture, file.with_name(f"{file.name}{rest}"))
    return True


def _files_are_there(words: list[str]) -> bool:
    """Makes the GGUF files that a run reads and nobody publishes."""
    for file in (word for word in words if word.endswith(".gguf") and not (ROOT / word).exists()):
        kind = file.removesuffix(".gguf").rsplit("-" if file.startswith(OURS) else ".")[-1]
        if file.startswith(OURS):
            dtype = {"q8_0": "int8", "bf16": "bfloat16"}[kind]
            making = [sys.executable, "-m", "draftproof", "convert", REAL]
            making += ["--dtype", dtype, "--out", file]
        else:
            found = (ROOT / "build/peers").glob("*/vendor/llama.cpp/build/bin/llama-quantize")
            source = f"{PUBLISHED}.Q4_1.gguf"
            making = [str(next(found, "llama-quantize")), "--allow-requantize", source, file, kind]
        if not shutil.which(making[0]) or subprocess.run(making, cwd=ROOT).returncode:
            return False
    return True


def _told(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
