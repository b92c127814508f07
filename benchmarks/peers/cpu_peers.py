"""draftproof's native runner beside its peers on the CPU; `--help` lists what can be chosen.

transformers, OpenVINO and llama.cpp on the same weights, threads and prompts, in one run, each in a
process of its own that sleeps while another is measured. `setup_peers.sh` makes the peers'
environment. Not `draftproof bench`, which compares methods inside one process.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import AutoTokenizer

from draftproof import clock
from draftproof import prompts as prompt_files
from draftproof.bench.compare import Comparison
from draftproof.bench.sides import How
from peer_models import Models, gguf_file, openvino_folder, prepare
from peer_parts import METHODS, Bench
from peer_report import tables, write
from peer_sides import Failed, Process, Start, strangers

PROGRAM = "benchmarks/peers/cpu_peers.py"
PARTS = ("passes", "plain", "speculative", "prompts")
PASSES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
BEHIND = 128  # tokens of context under a pass
SIDES = ("draftproof", "transformers", "openvino", "llama.cpp")


@dataclass(frozen=True)
class Options:
    """What is compared, on what, and how often."""

    target: str
    precision: str
    parts: tuple[str, ...]
    sides: tuple[str, ...]
    rounds: int
    source: str
    prompts: int
    max_tokens: int
    lengths: tuple[int, ...]
    passes: tuple[int, ...]
    threads: int
    timeout: float
    temperature: float
    same_files: bool


def _starts(models: Models, options: Options, peers: Path) -> dict[str, Callable[[], Start]]:
    """How each side is started; calling one may convert weights, and may raise `Failed`."""
    env, own = peers / "env", Path(sys.executable)
    common = ["--precision", options.precision, "--threads", str(options.threads)]
    common += ["--context", str(models.context), "--temperature", str(options.temperature)]
    parts = ["target", "draft"] if models.draft is not None else ["target"]

    def start(name: str, python: Path, script: str, found: list[Path], *more: str) -> Start:
        paths = [f"--{part}={at}" for part, at in zip(parts, found, strict=True)]
        log = peers / "logs" / f"{name}.log"
        return Start(name, python, script, [*paths, *common, *more], log)

    def folders() -> list[Path]:
        return [models.target, *([models.draft] if models.draft is not None else [])]

    def openvino() -> Start:
        made = [openvino_folder(models, part, options.precision, env) for part in parts]
        return start("openvino", env / "bin" / "python", "worker_openvino.py", made)

    def tools() -> Path:
        sources = sorted(path for path in peers.glob("llama_cpp_python-*") if path.is_dir())
        if not sources:
            raise Failed("no sources of llama-cpp-python in the peers' folder")
        return sources[-1]

    def gguf_files() -> list[Path]:
        return [gguf_file(models, part, options.precision, env, tools()) for part in parts]

    def llama() -> Start:
        python, more = env / "bin" / "python", f"--tools={tools()}"
        return start("llama.cpp", python, "worker_llama.py", gguf_files(), more)

    def draftproof() -> Start:
        found = gguf_files() if options.same_files else folders()
        return start("draftproof", own, "worker_draftproof.py", found)

    return {
        "draftproof": draftproof,
        "transformers": lambda: start("transformers", own, "worker_transformers.py", folders()),
        "openvino": openvino,
        "llama.cpp": llama,
    }


def _open(
    models: Models, options: Options, peers: Path, tell: Callable[[str], None]
) -> tuple[dict[str, Process], dict[str, str]]:
    """The sides that started, and why the others did not."""
    sides: dict[str, Process] = {}
    skipped: dict[str, str] = {}
    starts = _starts(models, options, peers)
    for name in options.sides:
        tell(f"starting {name}")
        try:
            sides[name] = Process(starts[name](), options.threads, options.timeout)
        except Failed as error:
            skipped[name] = str(error)
    return sides, skipped


def _measure(bench: Bench, options: Options, models: Models) -> None:
    """The parts asked for, one after the other."""
    if "passes" in options.parts:
        bench.passes(options.passes, BEHIND)
    if "plain" in options.parts or "speculative" in options.parts:
        tokenizer = AutoTokenizer.from_pretrained(models.target)
        comparison = Comparison(
            sides=[],
            prompts=prompt_files.read([options.source], options.prompts, tokenizer),
            tokenizer=tokenizer,
            how=How(options.temperature, options.max_tokens, seed=0, ignore_eos=True),
            tick=lambda text, share: bench.tick(text),
        )
        lengths = options.lengths if "speculative" in options.parts else ()
        if lengths and models.draft is None and models.name != "smollm2":
            reason = f"{options.target} has random weights: no draft, and no text to speculate on"
            bench.found.skipped["speculative"] = reason
            lengths = ()
        if "plain" in options.parts or lengths:
            methods = METHODS if models.draft is not None else ("lookup",)
            bench.writing(comparison, "plain" in options.parts, lengths, methods)
    if "prompts" in options.parts:
        bench.prompts((512, min(2048, models.context - 148)))


def _words(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"{what} {word!r} is unknown: use {', '.join(known)}")
    return words


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not numbers with commas between them") from None


def main(
    target: Annotated[str, typer.Option(help="bundled, inflated, smollm2, or a shape")] = "bundled",
    precision: Annotated[str, typer.Option(help="bf16, int8 or int4")] = "bf16",
    peers_folder: Annotated[Path, typer.Option(help="what setup_peers.sh made")] = Path(
        "build/peers"
    ),
    parts: Annotated[str, typer.Option(help="what is measured")] = ",".join(PARTS),
    sides: Annotated[str, typer.Option(help="who is compared")] = ",".join(SIDES),
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    source: Annotated[str, typer.Option("--prompts", help="a file, or a name")] = "held-out",
    num_prompts: Annotated[int, typer.Option(min=1)] = 5,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    lengths: Annotated[str, typer.Option(help="draft lengths tried")] = "2,3,5,8,12",
    passes: Annotated[str, typer.Option(help="tokens of the passes")] = ",".join(map(str, PASSES)),
    threads: Annotated[int, typer.Option(min=1)] = 2,
    timeout: Annotated[float, typer.Option(help="seconds for one answer")] = 600.0,
    temperature: Annotated[float, typer.Option(min=0.0, help="of what is written")] = 0.0,
    same_files: Annotated[
        bool, typer.Option("--same-files", help="draftproof reads llama.cpp's GGUF files too")
    ] = False,
    out: Annotated[Path, typer.Option(help="folder of the results")] = Path("bench-results"),
) -> None:
    """Compare and report; a peer that fails is skipped, with its reason."""
    options = Options(
        target=target,
        precision=_words(precision, ("bf16", "int8", "int4"), "precision")[0],
        parts=_words(parts, PARTS, "part"),
        sides=_words(sides, SIDES, "side"),
        rounds=rounds,
        source=source,
        prompts=num_prompts,
        max_tokens=max_tokens,
        lengths=_numbers(lengths),
        passes=_numbers(passes),
        threads=threads,
        timeout=timeout,
        temperature=temperature,
        same_files=same_files,
    )
    console = Console()
    began, date = time.monotonic(), time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    others = strangers()
    environment: dict[str, Any] = {"date": date, "load_before": clock.load()}
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("preparing weights")

        def tell(text: str) -> None:
            progress.update(task, description=text)

        try:
            models = prepare(options.target, peers_folder / "models")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        running, skipped = _open(models, options, peers_folder.absolute(), tell)
        bench = Bench(running, options.rounds, tell)
        bench.found.skipped |= skipped
        try:
            _measure(bench, options, models)
        finally:
            for side in running.values():
                side.close()
    environment |= {
        "load_after": clock.load(),
        "cores_busy_with_others": others(),
        "machine": clock.machine(),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "versions": {name: side.versions for name, side in running.items()},
        "command": re.sub(r" --out \S+", "", " ".join(["python", PROGRAM, *sys.argv[1:]])),
    }
    console.print(
        f"{date}, {environment['machine']} after, load {environment['load_before']} before, "
        f"{environment['cores_busy_with_others']} cores busy with other programs meanwhile",
        highlight=False,
    )
    for table in tables(bench.found, options.prompts):
        console.print(table)
    if options.precision != "bf16":
        console.print(f"transformers is in bf16: its own {options.precision} is not for the CPU.")
        environment["note"] = "transformers in bf16, keys and values of openvino in its default"
    for what, reason in bench.found.skipped.items():
        console.print(f"skipped {what}: {reason}", markup=False, highlight=False)
    about = {"environment": environment, "options": asdict(options), "methods": METHODS}
    kind = f"{options.precision}{'-gguf' * same_files}"
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-peers-{options.target}-{kind}"
    for path in write(bench.found, about, out, stem):
        console.print(f"written: {path}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
