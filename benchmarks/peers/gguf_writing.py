"""Writing from a GGUF file at temperature 0: the best of ours beside the best of llama.cpp's.

    python benchmarks/peers/gguf_writing.py FILE.gguf [--prompts humaneval --prompts mt-bench]

Ours: plain and `auto`. llama.cpp's, that of `setup_peers.sh`, through its C interface: plain, and
prompt look-up as llama-cpp-python has it (its `LlamaPromptLookupDecoding` drafts, one batch
verifies), with several lengths. All continue the same token ids; the sides take turns prompt by
prompt, seconds are those of prompt and text. A ratio is the median over the rounds, and its range.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.table import Table

import draftproof as dp
from draftproof import clock
from draftproof import prompts as prompt_files
from worker_llama import LlamaCpp
from worker_loop import Options

PEERS = Path("build/peers")
LENGTHS = (4, 8)  # of look-up's drafts; its default is 10
MATCH = 3
Writes = Callable[[list[int], int], Sequence[int]]


def main(
    file: Path,
    prompts: Annotated[list[str] | None, typer.Option(help="Both sets unless given.")] = None,
    num_prompts: Annotated[int, typer.Option(help="The first so many of each set.")] = 20,
    max_tokens: int = 128,
    rounds: int = 3,
    threads: int = 2,
    out: Annotated[Path, typer.Option(help="JSON of all sets.")] = Path(
        "bench-results/gguf_writing.json"
    ),
) -> None:
    """Measure, print a table per set of prompts, and write all of it."""
    plain = dp.LLM(file, speculate=None, threads=threads)
    auto = dp.LLM(plain, speculate="auto")
    longest = 1024 + max_tokens
    (tools,) = (each for each in PEERS.glob("llama_cpp_python-*") if each.is_dir())
    peer = LlamaCpp(Options(str(file), None, "bf16", threads, longest, 0.0, str(tools)))
    sides: dict[str, Writes] = {
        "draftproof plain": lambda ids, count: _ours(plain, ids, count),
        "draftproof auto": lambda ids, count: _ours(auto, ids, count),
        "llama.cpp plain": lambda ids, count: peer.generate(ids, "", count)["ids"],
    }
    for length in LENGTHS:
        sides[f"llama.cpp look-up {length}"] = lambda ids, count, n=length: _look_up(  # type: ignore[misc]
            peer, ids, count, n
        )
    measured, console = {}, Console()
    for name in prompts or ["humaneval", "mt-bench"]:
        read = prompt_files.read([name], num_prompts, plain.tokenizer)
        ids = [each.ids(plain.tokenizer, [])[-1024:] for each in read]
        measured[name] = _measured(sides, ids, max_tokens, rounds)
        console.print(_table(name, measured[name]))
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": clock.machine()}
    about |= {"file": file.name, "threads": threads, "load": clock.load()}
    out.write_text(json.dumps(about | {"sets": measured}, indent=1) + "\n")


def _measured(
    sides: dict[str, Writes], prompts: Sequence[list[int]], max_tokens: int, rounds: int
) -> dict[str, Any]:
    """Of each side: tokens per second of each round, and how many texts are not our plain one."""
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    differing = dict.fromkeys(sides, 0)
    for write in sides.values():
        write(prompts[0], max_tokens)  # warm
    for turn in range(rounds):
        seconds = dict.fromkeys(sides, 0.0)
        for ids in prompts:
            texts = {}
            for name in clock.in_turn(list(sides), turn):
                began = time.perf_counter()
                texts[name] = [*sides[name](ids, max_tokens)]
                seconds[name] += time.perf_counter() - began
            if not turn:
                own = texts["draftproof plain"]
                for name, text in texts.items():
                    differing[name] += text != own
        for name in sides:
            speeds[name].append(len(prompts) * max_tokens / seconds[name])
    return {"tokens_per_s": speeds, "differing": differing, "prompts": len(prompts)}


def _ours(llm: dp.LLM, ids: list[int], count: int) -> Sequence[int]:
    params = dp.SamplingParams(max_tokens=count, ignore_eos=True)
    # What was written before, in another round too, is nothing to copy from.
    (request,) = llm.prepare(ids, params, salt=uuid4().hex)
    for _ in llm.engine.run([request]):
        pass
    return request.completion().token_ids


def _look_up(peer: LlamaCpp, ids: list[int], count: int, length: int) -> Sequence[int]:
    drafter = importlib.import_module("llama_cpp.llama_speculative")
    propose = drafter.LlamaPromptLookupDecoding(MATCH, length)
    return peer.look_up(ids, count, propose)


def _table(name: str, found: dict[str, Any]) -> Table:
    table = Table("", "tokens/s", "other texts", title=f"{name}, {found['prompts']} prompts")
    best: dict[str, list[float]] = {}
    for side, speeds in found["tokens_per_s"].items():
        table.add_row(side, f"{statistics.median(speeds):.1f}", str(found["differing"][side]))
        program = side.split()[0]
        if statistics.median(speeds) > statistics.median(best.get(program, [0.0])):
            best[program] = speeds
    ratios = sorted(a / b for a, b in zip(best["draftproof"], best["llama.cpp"], strict=True))
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    table.add_row("best of ours over best of theirs", spread, "")
    return table


if __name__ == "__main__":
    typer.run(main)
