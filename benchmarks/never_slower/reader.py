"""A long prompt among writers, and what `objective="latency"` is worth.

    python benchmarks/never_slower/reader.py gap
    python benchmarks/never_slower/reader.py latency

gap: four texts are written, and a prompt of 2,000 tokens comes. How long does a writer wait for its
next tokens, in plain passes of that batch, and when does the reader write its first? latency: the
mean time per token of each of eight texts, over that of the throughput mode.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import cells
import forest
import records
import typer
from cells import Cell
from rich.console import Console

import draftproof as dp
from draftproof.request import Request

WRITERS, TOGETHER = 4, 8
WARM = 32  # steps of the writers before the prompt comes: what passes cost is learnt in them
MOST, LATENCY = 5.0, 1.02  # what is asked for

app = typer.Typer(add_completion=False)
Out = Annotated[Path, typer.Option(help="JSON of the run.")]


@app.command()
def gap(
    tokens: Annotated[int, typer.Option(help="Of the prompt.")] = 2000,
    rounds: int = 10,
    model: Annotated[str, typer.Option(help="smollm2 or bundled.")] = "smollm2",
    out: Out = Path("docs/never_slower/gap.json"),
) -> None:
    """The longest gap between a writer's tokens while a long prompt is read."""
    cell = Cell(model, batch=WRITERS)
    plain = cells.writer(cell)
    runs = []
    with dp.LLM(plain, speculate=cells.speculation(""), max_batch=16) as llm:
        tokens = min(tokens, llm.max_length - 32)
        pool = cells.turns(cell, plain)
        for number in range(rounds + 1):
            prompts, _ = next(pool)
            runs.append(_gap(llm, prompts, _prompt(llm, tokens, number)))
    del runs[0]  # where memory is new to this machine, rows grow slowly
    longest = statistics.median(run["gap"] for run in runs)
    first = statistics.median(run["first_token_s"] for run in runs)
    records.write(
        out, {"kind": "gap", "model": model, "tokens": tokens, "longest": longest, "runs": runs}
    )
    Console().print(
        f"{model}, a prompt of {tokens} tokens among {WRITERS} writers: longest gap "
        f"{longest:.2f} plain passes (at most {MOST:g} asked for), its first token after "
        f"{first:.2f} s"
    )


def _gap(llm: dp.LLM, prompts: list[list[int]], prompt: list[int]) -> dict[str, float]:
    room = dp.SamplingParams(max_tokens=4000, ignore_eos=True)
    writers = [made for each in prompts for made in llm.prepare(each, room)]
    for request in writers:
        llm.engine.add(request)
    try:
        plain = _plain(llm, writers)
        (reader,) = llm.prepare(prompt, dp.SamplingParams(max_tokens=1, ignore_eos=True))
        began = time.perf_counter()
        llm.engine.add(reader)
        last = dict.fromkeys((request.key for request in writers), began)
        longest = 0.0
        while not reader.finished:
            lengths = [len(request.tokens) for request in writers]
            llm.engine.step()
            now = time.perf_counter()
            for request, length in zip(writers, lengths, strict=True):
                if len(request.tokens) > length:
                    longest = max(longest, now - last[request.key])
                    last[request.key] = now
            if any(request.finished for request in writers):
                raise SystemExit("a writer has come to its end: take a shorter prompt")
        longest = max([longest, *(now - each for each in last.values())])
        return {
            "gap": longest / plain,
            "plain_pass_ms": 1e3 * plain,
            "first_token_s": time.perf_counter() - began,
        }
    finally:
        for request in writers:
            llm.engine.abort(request)


def _plain(llm: dp.LLM, writers: list[Request]) -> float:
    """Seconds of a plain step of all writers, the median; drafts are let again behind it."""
    while not all(request.begun for request in writers):
        llm.engine.step()
    for request in writers:
        request.speculate = False
    took = []
    for _ in range(WARM):
        began = time.perf_counter()
        llm.engine.step()
        took.append(time.perf_counter() - began)
    for request in writers:
        request.speculate = True
    return statistics.median(took)


def _prompt(llm: dp.LLM, tokens: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(llm.runner.vocabulary) for _ in range(tokens)]


@app.command()
def latency(
    rounds: Annotated[int, typer.Option(help="In which each mode writes the same texts.")] = 20,
    max_tokens: int = 128,
    model: Annotated[str, typer.Option(help="smollm2 or bundled.")] = "smollm2",
    text: str = "half",
    out: Out = Path("docs/never_slower/latency.json"),
) -> None:
    """The mean time per output token of each text, by the two objectives in turn."""
    cell = Cell(model, text=text, batch=TOGETHER)
    plain = cells.writer(cell)
    modes: dict[str, Any] = {
        objective: dp.LLM(
            plain, speculate=dp.Auto("ngram", "suffix", objective=objective), max_batch=16
        )
        for objective in ("throughput", "latency")
    }
    pool = cells.turns(cell, plain)
    ratios, runs = [], []
    for number in range(rounds):
        prompts, _ = next(pool)
        took, texts = {}, {}
        for mode in random.Random(number).sample([*modes], len(modes)):
            params = dp.SamplingParams(max_tokens=max_tokens, seed=number, ignore_eos=True)
            done = modes[mode].generate(prompts, params)
            took[mode] = statistics.fmean(
                (one.stats.ended - one.stats.first_token) / max(1, one.stats.tokens - 1)
                for one in done
            )
            texts[mode] = [one.token_ids for one in done]
        if texts["latency"] != texts["throughput"]:
            raise SystemExit("a text differs: a defect")
        ratios.append(took["latency"] / took["throughput"])
        runs.append({mode: 1e3 * seconds for mode, seconds in took.items()})
    for llm in modes.values():
        llm.close()
    middle, low, high = forest.interval(ratios)
    records.write(
        out,
        {"kind": "latency", "cell": cell.name, "ratio": (middle, low, high), "ms_per_token": runs},
    )
    Console().print(
        f"{cell.name}: latency mode takes {middle:.3f} ({low:.3f}-{high:.3f}) of the throughput "
        f"mode's time per token (at most {LATENCY:g} asked for)"
    )


if __name__ == "__main__":
    app()
