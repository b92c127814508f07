"""What the table of passes does not say of a replica, in JSON for `scale.py --own`.

    python benchmarks/scale/own.py http://127.0.0.1:8000 --costs costs.json --out own.json

The table has passes over the rows of one text. Here a server writes so many texts at once, each
behind so many tokens of its own, whose keys and values every step reads: the seconds of a step by
texts and tokens, less the table's, are a plane. Prompts of several lengths are read alone: their
seconds less the table's are a line. All as a client sees it, so the server's part is in. The server
is to draft nothing (`--method none`) and to have 16 places.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import httpx2
import numpy as np
import typer

from machines import Own, read_costs

TEXTS, BEHIND = (1, 2, 4, 8, 16), (32, 128, 384)
READ = (16, 64, 128, 256, 512)  # tokens of a prompt
SHORT, LONG = 8, 72  # tokens; what the longer one takes more has no prompt in it
IDS = 1000  # that prompts are drawn from


async def wave(client: httpx2.AsyncClient, texts: int, behind: int, tokens: int) -> float:
    """Seconds until the last of so many texts has ended, all begun at once, streamed."""

    async def one() -> None:
        prompt = random.choices(range(IDS), k=behind)
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if answer.is_error or "error" in line[:16]:
                    raise ValueError(f"the server answers: {line}")

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(texts)))
    return time.perf_counter() - began


async def measured(url: str, rounds: int) -> tuple[list[float], list[float]]:
    """Medians, seconds: a step, by texts and what they are behind; a prompt, by its tokens."""
    rows = []
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        for _ in range(rounds + 1):
            row = []
            for texts, behind in itertools.product(TEXTS, BEHIND):
                short, long = [await wave(client, texts, behind, n) for n in (SHORT, LONG)]
                row.append((long - short) / (LONG - SHORT))
            rows.append(row + [await wave(client, 1, length, 1) for length in READ])
    took = [statistics.median(each) for each in zip(*rows[1:], strict=True)]  # one warms up
    return took[: -len(READ)], took[-len(READ) :]


def fitted(terms: Any, took: Sequence[float], table: Sequence[float]) -> Any:
    """Seconds of each term beyond the table, and of each point; a point counts by its share.

    Only the constant, the first, may be negative: the table's passes are slower where each stands
    alone.
    """
    weights = 1 / np.array(took)
    more = (np.array(took) - table) * weights
    found, *_ = np.linalg.lstsq(terms * weights[:, None], more, rcond=None)
    found[1:] = np.maximum(found[1:], 0)
    return found, table + terms @ found


def main(
    url: Annotated[str, typer.Argument(help="Of `draftproof serve MODEL --method none`.")],
    costs: Annotated[Path, typer.Option(help="Of `draftproof info MODEL --measure --json`.")],
    rounds: Annotated[int, typer.Option(help="Of measuring, in turn.")] = 5,
    out: Annotated[Path, typer.Option(help="Where it is written.")] = Path("own.json"),
) -> None:
    """What a replica costs besides the table's passes."""
    try:
        table = read_costs(costs)
        steps, reads = asyncio.run(measured(url, rounds))
    except (ValueError, httpx2.HTTPError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    points = list(itertools.product(TEXTS, BEHIND))
    plane = np.array([(1, n, n * (behind + (SHORT + LONG) / 2)) for n, behind in points])
    step, told = fitted(plane, steps, [table.seconds(texts) for texts, _ in points])
    for (texts, behind), each, fit in zip(points, steps, told, strict=True):
        print(f"{texts:3} texts behind {behind:4}: {1e3 * each:7.2f} ms, fitted {1e3 * fit:7.2f}")
    line = np.array([(1, length) for length in READ])
    prompt, told = fitted(line, reads, [table.seconds(length) for length in READ])
    for length, each, fit in zip(READ, reads, told, strict=True):
        print(f"a prompt of {length:4}: {1e3 * each:7.2f} ms, fitted {1e3 * fit:7.2f}")
    found = Own(*map(float, (*step, *prompt)))
    out.write_text(json.dumps({"own_s": asdict(found)}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {out}")


if __name__ == "__main__":
    typer.run(main)
