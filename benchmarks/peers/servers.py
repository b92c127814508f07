"""`draftproof serve` beside llama.cpp's server, on the same GGUF files.

    python benchmarks/peers/servers.py FILE.gguf [FILE.gguf ...]

llama.cpp is that of `setup_peers.sh`. Both servers of a file are up all the time, and only the one
that is asked works: `draftproof load` calls one setting after another, so many clients at once,
each with a prompt of its own, and the rounds repeat that. Neither reuses what it has read. A
figure is the median of all rounds, and a ratio that of the rounds' ratios.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftproof import clock

PEERS = Path("build/peers")
ROOM = 1024  # tokens of a prompt and its answer, for each client of llama.cpp's
FRESH = {"cache_prompt": False}  # llama.cpp's word for it
PATIENCE = 120.0  # seconds for a server to be ready
OURS, PLAIN, AUTO = "draftproof", "plain", "auto"


@dataclass(frozen=True)
class Setting:
    """One column: a server that is up, and what a call of it has besides."""

    name: str
    server: str
    body: Mapping[str, Any]


def main(
    files: list[Path],
    clients: int = 16,
    calls: Annotated[int, typer.Option(help="Of each setting in a round.")] = 16,
    max_tokens: int = 64,
    rounds: int = 5,
    speculation: Annotated[
        list[str] | None, typer.Option(help="llama.cpp's --spec-type; repeatable.")
    ] = None,
    threads: int = 2,
    out: Annotated[Path, typer.Option(help="JSON of all files.")] = Path(
        "bench-results/servers.json"
    ),
) -> None:
    """Measure, print a table per file, and write all of it."""
    (peer,) = PEERS.glob("*/vendor/llama.cpp/build/bin/llama-server")
    asked = ["--clients", str(clients), "--calls", str(calls), "--max-tokens", str(max_tokens)]
    console, measured = Console(), []
    for file in files:
        with contextlib.ExitStack() as stack:
            started = _sides(file, peer, speculation or [], clients, threads)
            urls = {name: stack.enter_context(_served(words)) for name, words in started.items()}
            settings = _settings(started)
            turns = [
                {
                    each.name: _load(urls[each.server], each, asked)
                    for each in clock.in_turn(settings, turn)
                }
                for turn in range(rounds + 1)
            ][1:]  # the first one warms
        measured.append({"file": file.name, "settings": _told(settings, turns)})
        console.print(_table(measured[-1], clients))
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": clock.machine()}
    about |= {"clients": clients, "calls": calls, "max_tokens": max_tokens, "rounds": rounds}
    out.write_text(json.dumps(about | {"files": measured}, indent=1) + "\n")


def _sides(
    file: Path, peer: Path, kinds: Sequence[str], clients: int, threads: int
) -> dict[str, list[str]]:
    """The servers by name, as they are started."""
    places = min(clients, 16)
    ours = [sys.executable, "-m", "draftproof", "serve", str(file), "--quiet"]
    ours += ["--max-batch", str(places), "--threads", str(threads), "--no-prefix-cache"]
    theirs = [str(peer), "-m", str(file), "-np", str(places), "-c", str(places * ROOM)]
    theirs += ["-t", str(threads), "-tb", str(threads), "--no-webui", "--log-disable"]
    made = {OURS: ours, "llama.cpp": theirs}
    return made | {f"llama.cpp {kind}": [*theirs, "--spec-type", kind] for kind in kinds}


def _settings(servers: Mapping[str, Any]) -> list[Setting]:
    ours = {PLAIN: {"speculative": False}, AUTO: dict[str, Any]()}
    found = [Setting(f"draftproof {name}", OURS, ours[name]) for name in ours]
    return found + [Setting(name, name, FRESH) for name in servers if name != OURS]


@contextlib.contextmanager
def _served(words: Sequence[str]) -> Iterator[str]:
    """The address of a server that is ready; it ends with the block."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*words, "--port", str(port)], stdout=log, stderr=log)
        try:
            until = time.monotonic() + PATIENCE
            while not _ready(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise SystemExit(log.read().decode(errors="replace")[-2000:])
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _load(url: str, setting: Setting, asked: Sequence[str]) -> dict[str, Any]:
    """What one load of it took."""
    words = [sys.executable, "-m", "draftproof", "load", url, "--ignore-eos", "--json", *asked]
    words.append("--cold")  # nothing of earlier rounds is looked up
    with tempfile.TemporaryDirectory() as folder:
        words += ["--body", json.dumps(setting.body), "--out", folder, "--warm", "0"]
        done = subprocess.run(words, capture_output=True, text=True)
        kept = Path(folder) / "load.json"
        if not kept.exists():
            raise SystemExit(f"{setting.name}: {done.stderr.strip()}")
        (level,) = json.loads(kept.read_text())["levels"]
    times = [each["whole_ms"] for each in level["answers"] if each["fault"] is None]
    return {
        "tokens_per_s": level["tokens_per_s"],
        "first_token_ms": level["first_token_ms"]["p50"],
        "per_token_ms": level["per_token_ms"]["p50"],
        "failed": sum(level["failures"].values()),
        "slowest": max(times) / statistics.median(times),
    }


def _told(settings: Sequence[Setting], turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each setting, beside the best of llama.cpp's in the same round."""
    best = [
        max(turn[each.name]["tokens_per_s"] for each in settings if each.server != OURS)
        for turn in turns
    ]
    told = {}
    for each in settings:
        runs = [turn[each.name] for turn in turns]
        found = {
            name: statistics.median(run[name] for run in runs)
            for name in ("tokens_per_s", "first_token_ms", "per_token_ms", "slowest")
        }
        found["failed"] = sum(run["failed"] for run in runs)
        found["ratios"] = [
            run["tokens_per_s"] / other for run, other in zip(runs, best, strict=True)
        ]
        told[each.name] = found | {"ratio": statistics.median(found["ratios"])}
    return told


def _table(found: dict[str, Any], clients: int) -> Table:
    table = Table(title=f"{found['file']}, {clients} clients")
    heads = ("tokens/s", "of llama.cpp's best", "first token, ms", "per token, ms")
    for head in ("server", *heads, "slowest of the median", "failed"):
        table.add_column(head, justify="right" if head != "server" else "left")
    for name, each in found["settings"].items():
        cells = (f"{each['tokens_per_s']:.0f}", f"{each['ratio']:.2f}")
        cells += (f"{each['first_token_ms']:.0f}", f"{each['per_token_ms']:.1f}")
        table.add_row(name, *cells, f"{each['slowest']:.2f}", str(each["failed"]))
    return table


if __name__ == "__main__":
    typer.run(main)
