"""Passes of the native runner against the roofs of the machine, measured in the same rounds.

A pass can take no less than its bytes over what the threads read from memory, nor than its products
over what their kernel computes out of the cache. Neighbours on the machine move these roofs; the
ratio to them holds in any hour, the ratio to a pass over one token only in a quiet one.

    python benchmarks/roofs.py --model Qwen3-0.6B --dtype bfloat16 --dtype int8
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

import draftproof as dp
from draftproof import clock
from draftproof.bench.inflation import SHAPES
from draftproof.runners import costs
from draftproof.runners.base import KEY, Work
from draftproof.runners.native import NativeRunner
from draftproof.tree import TokenTree

POSITIONS = 4096


def opened(name: str, dtype: str, threads: int) -> NativeRunner:
    """A folder, a hub id, or random weights of a published shape."""
    options = {"runner": "native", "dtype": dtype, "threads": threads}
    if name not in SHAPES:
        runner = dp.LLM(name, **options).runner
    else:
        torch.manual_seed(0)
        config = AutoConfig.for_model(**SHAPES[name], max_position_embeddings=POSITIONS)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        options["dtype"] = "auto" if dtype == "bfloat16" else dtype
        runner = dp.LLM(model, **options).runner
    assert isinstance(runner, NativeRunner)
    return runner


def products(runner: NativeRunner) -> int:
    """Of a row of a pass, attention left out: one for every weight of a matrix."""
    shape = runner.packed.shape
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    of_layer = shape.hidden * (attention + 3 * shape.intermediate)
    return int(shape.layers * of_layer + shape.hidden * shape.vocabulary)


def main(
    model: Annotated[str, typer.Option(help="Folder, hub id, or a shape.")] = "Qwen3-0.6B",
    dtype: Annotated[list[str] | None, typer.Option(help="Both unless given.")] = None,
    sizes: Annotated[str, typer.Option(help="Tokens of the passes.")] = "1,2,4,8,12,16,24,32",
    context: int = 128,
    rounds: int = 9,
    threads: int = 2,
) -> None:
    """Measure, and print a table for each precision."""
    console = Console(highlight=False)
    console.print(f"{model}, {clock.machine()}")
    tokens = [int(size) for size in sizes.split(",")]
    for precision in dtype or ["bfloat16", "int8"]:
        runner = opened(model, precision, threads)
        console.print(measured(runner, precision, tokens, context, rounds))


def measured(
    runner: NativeRunner, precision: str, tokens: Sequence[int], context: int, rounds: int
) -> Table:
    """A row for each number of tokens; every round has the roofs of its moment."""
    runner.forward([Work(KEY, costs.context_ids(runner, context), None)])
    works = {n: Work(KEY, [], TokenTree.chain([1] * n), greedy=True) for n in tokens}
    passes = {str(n): partial(runner.forward, [work]) for n, work in works.items()}
    took: dict[str, list[float]] = {name: [] for name in passes}
    over: dict[str, list[float]] = {name: [] for name in passes}
    limits = []
    for turn in range(rounds + 1):
        read, rate = runner.team.limits(precision)
        seconds = clock.interleaved(passes, 1, 0)
        if not turn:
            continue
        limits.append((read, rate))
        for name, (each,) in seconds.items():
            roof = max(runner.packed.bytes / read, int(name) * products(runner) / rate)
            took[name].append(each)
            over[name].append(each / roof)
    read, rate = (statistics.median(each) for each in zip(*limits, strict=True))
    table = Table(
        title=f"{precision}: {runner.packed.bytes / 1e6:,.0f} MB, reads {read / 1e9:.1f} GB/s, "
        f"{rate / 1e9:.0f} G products/s, {runner.name}"
    )
    for heading in ("T", "ms", "over T=1", "over the roof (range)"):
        table.add_column(heading, justify="right")
    for name in passes:
        table.add_row(
            name,
            f"{1e3 * statistics.median(took[name]):.1f}",
            f"{clock.median_ratio(took[name], took[str(tokens[0])]):.2f}",
            f"{statistics.median(over[name]):.2f} ({min(over[name]):.2f}-{max(over[name]):.2f})",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
