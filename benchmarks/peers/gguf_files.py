"""GGUF files on our runner and in llama.cpp: writing, passes over a few tokens, a prompt.

    python benchmarks/peers/gguf_files.py FILE.gguf [FILE.gguf ...]

llama.cpp is that of `setup_peers.sh`, timed by its own `llama-bench`. The sides take turns; a
figure is the median of all rounds, and a ratio that of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import draftproof as dp
from draftproof import clock
from draftproof.gguf.reader import read
from draftproof.runners import costs
from draftproof.runners.base import KEY, Work

ROWS = (1, 4, 8, 12, 16)  # tokens in a pass
PROMPT, WRITTEN, CONTEXT = 512, 64, 16
PEERS = Path("build/peers")
LINE = re.compile(r"\|\s+((?:pp|tg)\d+) \|\s+([\d.]+) ±")


def main(
    files: list[Path],
    rounds: int = 5,
    threads: int = 2,
    out: Annotated[Path, typer.Option(help="JSON of all files.")] = Path(
        "bench-results/gguf_files.json"
    ),
) -> None:
    """Measure, print a table per file, and write all of it."""
    (peer,) = PEERS.glob("*/vendor/llama.cpp/build/bin/llama-bench")
    console, measured = Console(), []
    for file in files:
        found = _measured(file, peer, rounds, threads)
        measured.append(found)
        console.print(_table(found))
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": clock.machine()}
    about |= {"threads": threads, "rounds": rounds}
    out.write_text(json.dumps(about | {"files": measured}, indent=1) + "\n")


def _measured(file: Path, peer: Path, rounds: int, threads: int) -> dict[str, Any]:
    with dp.LLM(file, speculate=None, threads=threads) as llm:
        _ours(llm)  # warm
        turns = [(_ours(llm), _theirs(file, peer, threads)) for _ in range(rounds)]
        load, packed = clock.load(), llm.runner.packed.bytes
    sizes: dict[str, int] = {}
    for stored in read(file).tensors.values():
        sizes[stored.kind] = sizes.get(stored.kind, 0) + stored.data.size
    return {
        "file": file.name,
        "bytes": file.stat().st_size,
        "packed": packed,
        "types": sizes,
        "load": load,
        "draftproof": [ours for ours, _ in turns],
        "llama.cpp": [theirs for _, theirs in turns],
    }


def _ours(llm: dp.LLM) -> dict[str, float]:
    """Tokens per second, by llama-bench's names."""
    took = costs.pass_seconds(llm.runner, CONTEXT, ROWS, rounds=7)
    found = {f"pp{rows}": rows / seconds for rows, seconds in took.items()}
    ids, prompts = costs.context_ids(llm.runner, PROMPT), []
    for _ in range(3):
        began = time.perf_counter()
        llm.runner.forward([Work(KEY, ids, None)])
        prompts.append(time.perf_counter() - began)
        llm.runner.free(KEY)
    found[f"pp{PROMPT}"] = PROMPT / statistics.median(prompts)
    params = dp.SamplingParams(max_tokens=WRITTEN, ignore_eos=True)
    began = time.perf_counter()
    llm.generate([[1]], params)
    return found | {f"tg{WRITTEN}": WRITTEN / (time.perf_counter() - began)}


def _theirs(file: Path, peer: Path, threads: int) -> dict[str, float]:
    sizes = ",".join(map(str, (*ROWS, PROMPT)))
    command = [peer, "-m", file, "-t", str(threads), "-p", sizes, "-n", str(WRITTEN), "-r", "3"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(peer.parent)},
    )
    return {name: float(rate) for name, rate in LINE.findall(done.stdout)}


def _table(found: dict[str, Any]) -> Table:
    table = Table("", "draftproof", "llama.cpp", "ratio", title=found["file"])
    for name in found["draftproof"][0]:
        ours, theirs = (
            [turn[name] for turn in found[side]] for side in ("draftproof", "llama.cpp")
        )
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        rates = (f"{statistics.median(side):.1f}/s" for side in (ours, theirs))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        table.add_row(name, *rates, spread)
    return table


if __name__ == "__main__":
    typer.run(main)
