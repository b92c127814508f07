"""What a GGUF file's arithmetic costs, ours and llama.cpp's, beside the same weights in float32.

    python benchmarks/peers/gguf_quality.py FILE.gguf [--of FOLDER --dtype int4]

All read the English text that comes along, in windows of 512 tokens. Divergences are KL(float32,
side), in nats, mean over the text. llama.cpp is that of `setup_peers.sh`, through its C interface.
--of: the checkpoint that the files were made from is what they are compared with, and so are its
own roundings by --dtype; else each file is compared with itself, dequantised.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import draftproof as dp
from draftproof import clock, quality
from draftproof.bundled import ENGLISH
from worker_llama import LlamaCpp
from worker_loop import Options

WINDOW = 512
PEERS = Path("build/peers")
Reads = Callable[[Sequence[int]], Tensor]  # log-probabilities (T, V) behind every token of a row


def main(
    files: list[Path],
    of: Annotated[Path | None, typer.Option(help="What the files were made from.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Of --of, rounded by us.")] = None,
    windows: Annotated[int | None, typer.Option(help="The first so many; all there are.")] = None,
    threads: int = 2,
    out: Annotated[Path, typer.Option(help="JSON of all files.")] = Path(
        "bench-results/gguf_quality.json"
    ),
) -> None:
    """Measure, print a table per file, and write all of it."""
    if dtype and of is None:
        raise typer.BadParameter("--dtype rounds a checkpoint: give --of FOLDER")
    measured, console = [], Console()
    for source in files:
        sides: dict[str, Callable[[], tuple[Reads, Any]]] = {
            "draftproof": lambda file=source: _ours(file, threads),  # type: ignore[misc]
            "llama.cpp": lambda file=source: _theirs(file, threads),  # type: ignore[misc]
        }
        measured.append(_measured(str(source), of or source, sides, threads, windows))
    for each in dtype or ():
        rounded = {f"dtype {each}": lambda each=each: _ours(of, threads, dtype=each)}  # type: ignore[misc]
        measured.append(_measured(f"{of}", of, rounded, threads, windows))
    for found in measured:
        console.print(_table(found))
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": clock.machine()}
    out.write_text(json.dumps(about | {"files": measured}, indent=1) + "\n")


def _measured(
    name: str,
    reference: Any,
    sides: dict[str, Callable[[], tuple[Reads, Any]]],
    threads: int,
    count: int | None,
) -> dict[str, Any]:
    exact = dp.LLM(reference, runner="torch", dtype="float32", speculate=None, threads=threads)
    text = ENGLISH.read_text(encoding="utf-8")
    rows = quality.windows(exact.tokenizer, text, WINDOW)[:count]
    wanted = [quality.laws_of(exact, row) for row in rows]
    exact.close()
    found: dict[str, Any] = {"file": name, "tokens": sum(map(len, rows))}
    for side, load in sides.items():
        reads, held = load()
        divergences, agreed = [], []
        for want, row in zip(wanted, rows, strict=True):
            got = reads(row)
            divergences.append(quality.divergence(want, got))
            agreed.append(want.argmax(-1) == got.argmax(-1))
        held.close()
        found[side] = {
            "divergence": float(torch.cat(divergences).mean()),
            "divergence_p99": float(torch.cat(divergences).quantile(0.99)),
            "agreement": float(torch.cat(agreed).double().mean()),
        }
    return found


def _ours(model: Any, threads: int, **options: Any) -> tuple[Reads, Any]:
    llm = dp.LLM(model, runner="native", speculate=None, threads=threads, **options)
    return lambda row: quality.laws_of(llm, row), llm


def _theirs(file: Path, threads: int) -> tuple[Reads, Any]:
    (tools,) = (each for each in PEERS.glob("llama_cpp_python-*") if each.is_dir())
    peer = LlamaCpp(
        Options(str(file), None, "bf16", threads, WINDOW, temperature=0.0, tools=str(tools))
    )
    return lambda row: torch.from_numpy(peer.logits(row)).log_softmax(-1), peer


def _table(found: dict[str, Any]) -> Table:
    table = Table("", "KL, mean", "p99", "same token", title=found["file"])
    sides = {name: side for name, side in found.items() if isinstance(side, dict)}
    for name, side in sides.items():
        divergences = (f"{side[which]:.5f}" for which in ("divergence", "divergence_p99"))
        table.add_row(name, *divergences, f"{side['agreement']:.2%}")
    if len(sides) == 2:
        ours, theirs = (side["divergence"] for side in sides.values())
        table.add_row("ratio", f"{ours / theirs:.2f}", "", "")
    return table


if __name__ == "__main__":
    typer.run(main)
