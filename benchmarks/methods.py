"""Every method at its best settings on one pair: tokens per step, share accepted, tokens/s.

The settings of a method are tried on a few prompts, the fastest is then measured beside the
others in turn, prompt by prompt. Plain decoding is among them, and every text must be its text.
Suffix automata remember no earlier outputs here: every round writes the same ones again.

    python benchmarks/methods.py --target bundled --draft bundled --out docs/methods
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

import draftproof as dp
from draftproof import clock
from draftproof import prompts as texts
from draftproof.bundled import located

TRIED = 3  # prompts on which settings are tried
Made = Callable[[], Any]


def candidates(
    draft: str, second: str, heads: str, exit: str, layers: int
) -> dict[str, dict[str, Made]]:
    """Method -> settings, as they are told -> what makes it."""
    exits = sorted({1, max(1, layers // 4), max(1, layers // 2)})
    return {
        "none": {"": lambda: None},
        "n-gram": {
            f"{n} tokens, {b} branches": lambda n=n, b=b: dp.NGram(n, branches=b)
            for n in (4, 8)
            for b in (1, 2)
        },
        "suffix": {
            f"{n} nodes, share {s}": lambda n=n, s=s: dp.SuffixAutomaton(n, min_share=s, corpus=0)
            for n in (6, 10)
            for s in (0.1, 0.3)
        },
        "lookahead": {
            f"W {w}, N {n}, G {g}": lambda w=w, n=n, g=g: dp.Lookahead(w, n, g)
            for w, n, g in ((2, 3, 3), (3, 3, 3), (2, 4, 2), (4, 3, 4), (5, 4, 5))
        },
        "early exit": {
            f"{k} layers, {n} tokens": lambda k=k, n=n: dp.EarlyExit(k, n)
            for k in exits
            for n in (1, 3)
        },
        "early exit, head": {
            f"{n} tokens, branch {b}": lambda n=n, b=b: dp.EarlyExit(
                num_draft_tokens=n, branch=b, heads=exit
            )
            for n in (2, 3, 5)
            for b in (1, 2)
            if exit
        },
        "draft": {
            f"{n} tokens, branch {b}": lambda n=n, b=b: dp.DraftModel(draft, n, branch=b)
            for n in (2, 3, 5, 7)
            for b in (1, 2)
        },
        "draft, int8": {
            f"{n} tokens": lambda n=n: dp.DraftModel(draft, n, quantize="int8") for n in (3, 5)
        },
        "draft, tree": {"fitted": lambda: dp.DraftModel(draft, tree="auto")},
        "SpecInfer": {
            str(e): lambda e=e: dp.SpecInfer([draft], expansion=e)
            for e in ((2, 1, 1), (2, 2, 1), (3, 1, 1, 1), (1, 1, 3, 1, 1))
        },
        "SpecInfer, two drafts": {
            str(e): lambda e=e: dp.SpecInfer([draft, second], expansion=e)
            for e in ((1, 1, 1), (1, 1, 1, 1, 1), (2, 1, 1))
            if second
        },
        "Medusa": {
            f"{n} nodes, {tree}": lambda n=n, tree=tree: dp.Medusa(heads, tree, nodes=n)
            for n in (4, 8, 11, 20)
            for tree in ("calibrated", "grown")
        }
        | {"its own tree": lambda: dp.Medusa(heads)},
        "staged": {
            f"{n} tokens, branch {b}, over n-grams": lambda n=n, b=b: dp.Staged(
                draft, dp.NGram(4, branches=1), n, branch=b
            )
            for n in (3, 5, 7)
            for b in (1, 2)
        },
        "hybrid": {
            f"n-gram + draft of {n}, {m} nodes": lambda n=n, m=m: dp.Hybrid(
                [dp.NGram(), dp.DraftModel(draft, n)], m
            )
            for n in (3, 5)
            for m in (8, 12)
        },
    }


class Side:
    """One method with its settings."""

    def __init__(self, base: dp.LLM, settings: str, made: Made) -> None:
        self.settings, self.llm = settings, dp.LLM(base, speculate=made())
        self.seconds: list[float] = []  # by round
        self.stats: list[Any] = []

    def write(self, ids: list[int], params: dp.SamplingParams) -> tuple[float, Any]:
        began = time.perf_counter()
        (done,) = self.llm.generate([ids], params)
        seconds = time.perf_counter() - began
        if done.error or done.warnings:
            raise ValueError(done.error or done.warnings[0])
        return seconds, done


def main(
    target: Annotated[str, typer.Option(help="Folder, or bundled.")] = "bundled",
    draft: Annotated[str, typer.Option(help="Folder, or bundled.")] = "bundled",
    second_draft: Annotated[str, typer.Option(help="Folder; none unless given.")] = "",
    heads: Annotated[str, typer.Option(help="Folder, or bundled.")] = "bundled",
    exit: Annotated[str, typer.Option(help="Folder of a head on a layer; none unless given.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="A method; repeatable; all unless given.")
    ] = None,
    dtype: str = "bfloat16",
    runner: str = "native",
    temperature: float = 0.0,
    count: Annotated[int, typer.Option("--prompts")] = 6,
    max_tokens: int = 96,
    rounds: int = 5,
    name: Annotated[str, typer.Option(help="Of the pair, in the table and the file.")] = "bundled",
    out: Path = Path("bench-results"),
) -> None:
    """Measure, and write JSON and a table in Markdown."""
    base = dp.LLM(located(target, "target"), runner=runner, dtype=dtype)
    ids = [p.ids(base.tokenizer, ()) for p in texts.held_out(base.tokenizer, count)]
    load = clock.load()

    def params(number: int) -> dp.SamplingParams:
        return dp.SamplingParams(
            temperature=temperature, max_tokens=max_tokens, seed=number, ignore_eos=True
        )

    draft, heads = located(draft, "draft"), located(heads, "heads")
    made = candidates(draft, second_draft, heads, exit, base.runner.layers)
    wished = {"none", *only} if only else set(made)
    made = {method: each for method, each in made.items() if method in wished and each}
    sides: dict[str, Side] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("settings", total=len(made))
        for method, settings in made.items():
            tried = {}
            for text, one in settings.items():
                side = Side(base, text, one)
                side.write(ids[0], params(0))  # warm
                seconds = sum(side.write(ids[i], params(i))[0] for i in range(min(TRIED, count)))
                tried[seconds] = side
            sides[method] = tried[min(tried)]
            bar.advance(task)
        task = bar.add_task("rounds", total=rounds)
        wanted: dict[int, list[int]] = {}
        for turn in range(rounds):
            for side in sides.values():
                side.seconds.append(0.0)
            for number, prompt in enumerate(ids):
                order = list(sides.values())[:: 1 if (turn + number) % 2 else -1]
                for side in order:
                    seconds, done = side.write(prompt, params(number))
                    side.seconds[-1] += seconds
                    if turn == 0:
                        side.stats.append(done.stats)
                    if done.token_ids != wanted.setdefault(number, done.token_ids):
                        raise SystemExit(f"{side.settings} wrote another text: a defect")
            bar.advance(task)
    tokens = sum(map(len, wanted.values()))
    found = {
        "pair": name,
        "temperature": temperature,
        "runner": base.runner.name,
        "precision": base.runner.precision,
        "machine": clock.machine(),
        "load_before": load,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "prompts": count,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "methods": {method: _row(side, sides["none"], tokens) for method, side in sides.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{base.runner.precision}-{temperature:g}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    print("written:", path)


def _row(side: Side, plain: Side, tokens: int) -> dict[str, Any]:
    stats = side.stats
    drafted, steps = sum(s.drafted for s in stats), sum(s.steps for s in stats)
    ratios = [a / b for a, b in zip(plain.seconds, side.seconds, strict=True)]
    return {
        "settings": side.settings,
        "tokens_per_step": tokens / steps,
        "accepted": sum(s.accepted for s in stats) / drafted if drafted else None,
        "drafted_per_step": drafted / steps,
        "tokens_per_s": tokens / statistics.median(side.seconds),
        "speedup": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "step_cost": tokens / steps / statistics.median(ratios),  # in plain steps
    }


def table(found: dict[str, Any]) -> str:
    """Markdown: one row per method."""
    lines = [
        f"{found['pair']}, {found['precision']}, temperature {found['temperature']:g}:",
        "",
        "| method | best settings | tokens/step | accepted | step cost | tokens/s | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, row in found["methods"].items():
        share = "-" if row["accepted"] is None else f"{row['accepted']:.0%}"
        low, high = row["spread"]
        lines.append(
            f"| {method} | {row['settings']} | {row['tokens_per_step']:.2f} | {share} "
            f"| {row['step_cost']:.2f} | {row['tokens_per_s']:,.0f} "
            f"| {row['speedup']:.2f}x ({low:.2f}-{high:.2f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
