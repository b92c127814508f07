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

import torch
import typer

import draftproof as dp
from draftproof import clock, methods, prompts
from draftproof.bench.compare import Comparison, Result, compare, fastest, stats_of
from draftproof.bench.report import processor, threads
from draftproof.bench.sides import How, Side, ours
from draftproof.bundled import located
from draftproof.cli.progress import Running

FEW = 3  # prompts on which settings are compared
Maker = Callable[[], Any]


def candidates(
    draft: str, second: str, heads: str, exit: str, layers: int
) -> dict[str, dict[str, Maker]]:
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
            if draft
        },
        "draft, int8": {
            f"{n} tokens": lambda n=n: dp.DraftModel(draft, n, quantize="int8")
            for n in (3, 5)
            if draft
        },
        "draft, tree": {"fitted": lambda: dp.DraftModel(draft, tree="auto")} if draft else {},
        "SpecInfer": {
            str(e): lambda e=e: dp.SpecInfer([draft], expansion=e)
            for e in ((2, 1, 1), (2, 2, 1), (3, 1, 1, 1), (1, 1, 3, 1, 1))
            if draft
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
            if heads
        }
        | ({"its own tree": lambda: dp.Medusa(heads)} if heads else {}),
        "staged": {
            f"{n} tokens, branch {b}, over n-grams": lambda n=n, b=b: dp.Staged(
                draft, dp.NGram(4, branches=1), n, branch=b
            )
            for n in (3, 5, 7)
            for b in (1, 2)
            if draft
        },
        "n-gram + suffix": {
            f"{m} nodes": lambda m=m: dp.Hybrid(
                [dp.NGram(), dp.SuffixAutomaton(corpus=0)], max_nodes=m
            )
            for m in (8, 12)
        },
        "hybrid": {
            f"n-gram + draft of {n}, {m} nodes": lambda n=n, m=m: dp.Hybrid(
                [dp.NGram(), dp.DraftModel(draft, n)], m
            )
            for n in (3, 5)
            for m in (8, 12)
            if draft
        },
        "auto": {
            name: lambda given=given: methods.named("auto", given, corpus=0)
            for name, given in (
                ("look-ups", {}),
                ("look-ups and the draft", {"draft": draft}),
                ("look-ups and the heads", {"heads": heads}),
                ("look-ups and the exit", {"heads": exit}),
            )
            if all(given.values())
        },
    }


def main(
    target: Annotated[str, typer.Option(help="Folder, or bundled.")] = "bundled",
    draft: Annotated[str, typer.Option(help="Folder, bundled, or nothing.")] = "bundled",
    second_draft: Annotated[str, typer.Option(help="Folder; none unless given.")] = "",
    heads: Annotated[str, typer.Option(help="Folder, bundled, or nothing.")] = "bundled",
    exit: Annotated[str, typer.Option(help="Folder of a head on a layer; none unless given.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="A method; repeatable; all unless given.")
    ] = None,
    dtype: str = "bfloat16",
    runner: str = "native",
    temperature: float = 0.0,
    source: Annotated[str, typer.Option("--prompts", help="A file, or a name.")] = "held-out",
    chat: Annotated[bool, typer.Option("--chat", help="Through the chat template.")] = False,
    count: Annotated[int, typer.Option("--num-prompts")] = 6,
    max_tokens: int = 96,
    rounds: int = 5,
    name: Annotated[str, typer.Option(help="Of the pair, in the table and the file.")] = "bundled",
    out: Path = Path("bench-results"),
) -> None:
    """Measure, and write JSON and a table in Markdown."""
    base = dp.LLM(located(target, "target"), runner=runner, dtype=dtype, speculate=None)
    load = clock.load()
    draft, heads = located(draft, "draft"), located(heads, "heads")
    listed = candidates(draft, second_draft, heads, exit, base.runner.layers)
    wanted = {"none", *only} if only else set(listed)
    with Running() as running:
        comparison = Comparison(
            sides=[],
            prompts=prompts.read([source], count, base.tokenizer, chat),
            tokenizer=base.tokenizer,
            how=How(temperature, max_tokens, seed=0, ignore_eos=True),
            tick=running,
            longest=base.max_length,
        )
        chosen: dict[str, tuple[str, Side]] = {}  # method -> settings, and who writes with them
        for method, settings in listed.items():
            if method in wanted and settings:
                chosen[method] = _best(method, settings, base, comparison)
        comparison.sides = [side for _, side in chosen.values()]
        comparison.run(rounds)
    compare(comparison)
    found = {
        "pair": name,
        "temperature": temperature,
        "runner": base.runner.name,
        "precision": base.runner.precision,
        "threads": torch.get_num_threads(),
        "processor": clock.processor(),
        "machine": clock.machine(),
        "load_before": load,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "prompts": count,
        "source": source,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "methods": {
            method: _row(settings, comparison.results[side.name])
            for method, (settings, side) in chosen.items()
        },
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{base.runner.precision}-{temperature:g}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    print("written:", path)


def _best(
    method: str, settings: dict[str, Maker], base: dp.LLM, comparison: Comparison
) -> tuple[str, Side]:
    """The settings with which the method is fastest on a few prompts, and its side."""
    sides = {
        text: ours(f"{method} ({text})", dp.LLM(base, speculate=make()))
        for text, make in settings.items()
    }
    best, _, _ = fastest(list(sides.values()), comparison, FEW)
    return next((text, side) for text, side in sides.items() if side is best)


def _row(settings: str, result: Result) -> dict[str, Any]:
    """Figures of one method; refuses one that wrote another text than plain decoding."""
    if result.differing:
        raise SystemExit(f"{result.side} wrote another text: a defect")
    stats = stats_of(result)
    drafted, steps = sum(s.drafted for s in stats), sum(s.steps for s in stats)
    assert result.of_plain is not None and result.tokens_per_step is not None
    return {
        "settings": settings,
        "tokens_per_step": result.tokens_per_step,
        "accepted": sum(s.accepted for s in stats) / drafted if drafted else None,
        "drafted_per_step": drafted / steps,
        "tokens_per_s": statistics.median(result.tokens_per_s),
        "speedup": result.of_plain.median,
        "spread": [result.of_plain.low, result.of_plain.high],
        "step_cost": result.tokens_per_step / result.of_plain.median,  # in plain steps
    }


def table(found: dict[str, Any]) -> str:
    """Markdown: one row per method."""
    lines = [
        f"{found['pair']}, {found['runner']} runner, {found['precision']}, {threads(found)}, "
        f"{processor(found)}; {found['prompts']} {found['source']} prompts, {found['max_tokens']} "
        f"tokens each; temperature {found['temperature']:g}:",
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
