"""Leviathan's table of T5 at the cost of T5-base or -large, and the bundled mender.

The table: models of these shapes with random weights cost what the trained ones cost, but would
agree on nothing. So a draft runs all its passes, and what it then says is planted: at every place
of the text the right token with the published chance, else a wrong one. Cost is measured,
acceptance is planted. transformers' assisted generation stands beside it at batch 1 and
temperature 0, with the same tokens planted (when it samples, it draws the text anew in every run,
so nobody knows in advance what would be right).

The mender: every side of `draftproof bench` on held-out damage, nothing planted.

The table is kept cell by cell (task, temperature, batch): run again, it goes on where it was
killed, or where `--minutes` had passed.

    python benchmarks/encoder_decoder.py --part table --minutes 20 --out docs/encoder_decoder
    python benchmarks/encoder_decoder.py --part table --target large      hours on two cores
    python benchmarks/encoder_decoder.py --part pass    a step taken apart: see encoder_passes.py
    python benchmarks/encoder_decoder.py --quick --out build/quick        minutes, tiny shapes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import draftproof as dp
import encoder_passes
from draftproof import analysis, clock
from draftproof.bench import sides, suite
from draftproof.bench.sides import How, Written
from draftproof.bundled import MENDER
from draftproof.cli.progress import Running
from draftproof.runners import costs
from planted_pairs import VOCABULARY, Plant, Planted, assisted
from table_cells import kept, write

LABEL = "cost measured, acceptance planted"
TARGETS = ("base", "large")
SHAPES: dict[str, dict[str, int]] = {  # of T5 v1.0, from their published configurations
    "small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64},
    "base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64},
    "large": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16, "d_kv": 64},
}
TINY: dict[str, dict[str, int]] = {
    "small": {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "d_kv": 16},
    "base": {"d_model": 48, "d_ff": 96, "num_layers": 2, "num_heads": 3, "d_kv": 16},
    "large": {"d_model": 64, "d_ff": 128, "num_layers": 3, "num_heads": 4, "d_kv": 16},
}
READS = {"EnDe": 32, "CNN/DM": 256}  # tokens that the encoder reads
Published = tuple[str, str, float, int, float, float]
TABLE_2: list[Published] = [  # task, draft, T, gamma, alpha, speed-up: T5-XXL on a TPU-v4
    ("EnDe", "small", 0.0, 7, 0.75, 3.4),
    ("EnDe", "base", 0.0, 7, 0.80, 2.8),
    ("EnDe", "large", 0.0, 7, 0.82, 1.7),
    ("EnDe", "small", 1.0, 7, 0.62, 2.6),
    ("EnDe", "base", 1.0, 5, 0.68, 2.4),
    ("EnDe", "large", 1.0, 3, 0.71, 1.4),
    ("CNN/DM", "small", 0.0, 5, 0.65, 3.1),
    ("CNN/DM", "base", 0.0, 5, 0.73, 3.0),
    ("CNN/DM", "large", 0.0, 3, 0.74, 2.2),
    ("CNN/DM", "small", 1.0, 5, 0.53, 2.3),
    ("CNN/DM", "base", 1.0, 3, 0.55, 2.2),
    ("CNN/DM", "large", 1.0, 3, 0.56, 1.7),
]


@dataclass(frozen=True)
class Case:
    """What is written by all sides in turn."""

    task: str
    temperature: float
    batch: int

    drafts: tuple[str, ...] = tuple(SHAPES)  # those no larger than the target

    @property
    def published(self) -> list[Published]:
        cell = self.task, self.temperature
        return [row for row in TABLE_2 if (row[0], row[2]) == cell and row[1] in self.drafts]


def made(shape: dict[str, int], dtype: torch.dtype) -> PreTrainedModel:
    """T5 of that shape with random weights."""
    config = T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **shape)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return T5ForConditionalGeneration(config).eval()
    finally:
        torch.set_default_dtype(before)


def timed(
    case: Case, llm: dp.LLM, drafts: dict[str, Any], tokens: int, rounds: int, told: Any
) -> list[dict[str, Any]]:
    """A row for each published one of the case: plain, drafted and transformers' turn by turn."""
    how = How(case.temperature, tokens, seed=0, ignore_eos=True)
    draw = Random(case.task)
    size = READS[case.task]
    prompts = [[draw.randrange(3, VOCABULARY) for _ in range(size)] for _ in range(case.batch)]
    plain = sides.ours("none", dp.LLM(llm, speculate=None, max_batch=case.batch))
    texts = {
        tuple(prompt): written.token_ids
        for prompt, written in zip(prompts, plain.write(prompts, how), strict=True)
    }
    everyone = {"none": plain}
    if (beside := case.batch == 1 and case.temperature == 0) is True:
        everyone["transformers"] = sides.transformers("", llm.runner.model, [])
    for _, name, _, gamma, alpha, _ in case.published:
        plant = Plant(texts, alpha, gamma)
        drafter = Planted(drafts[name], gamma, plant)
        everyone[name] = sides.ours(name, dp.LLM(llm, speculate=drafter, max_batch=case.batch))
        if beside:
            everyone[f"assisted {name}"] = assisted(llm.runner.model, drafts[name], gamma, plant)
    took: dict[str, list[float]] = {name: [] for name in everyone}
    last: dict[str, list[Written]] = {}
    for turn in range(rounds + 1):  # the first one warms up
        told(f"{case.task}, T={case.temperature:g}, batch {case.batch}, round {turn}", None)
        for name in clock.in_turn([*everyone], turn):
            began = time.perf_counter()
            last[name] = everyone[name].write(prompts, how)
            if turn:
                took[name].append(time.perf_counter() - began)
    want = [written.token_ids for written in last["none"]]

    def ratios(name: str, to: str = "none") -> list[float] | None:
        return [a / b for a, b in zip(took[to], took[name], strict=True)] if name in took else None

    rows = []
    for task, name, temperature, gamma, alpha, published in case.published:
        stats = [written.stats for written in last[name] if written.stats is not None]
        rows.append(
            {
                "task": task,
                "draft": name,
                "temperature": temperature,
                "batch": case.batch,
                "gamma": gamma,
                "alpha": alpha,
                "published": published,
                "label": LABEL,
                "measured": ratios(name),
                "tokens_per_step": sum(s.tokens for s in stats) / sum(s.steps for s in stats),
                "differing": sum(
                    written.token_ids != text
                    for written, text in zip(last[name], want, strict=True)
                ),
                "plain_tokens_per_s": case.batch * tokens / statistics.median(took["none"]),
                "transformers_plain": ratios("transformers"),
                "transformers_assisted": ratios(f"assisted {name}"),
                "of_transformers_assisted": ratios(name, f"assisted {name}") if beside else None,
            }
        )
    return rows


def predicted(
    row: dict[str, Any], passes: dict[str, dict[str, float]], target: str
) -> dict[str, float]:
    """By Theorem 3.8 with the measured c, and with what a pass over a batch's drafts takes too."""
    batch, gamma, alpha = row["batch"], row["gamma"], row["alpha"]
    whole, draft = (
        {int(n): seconds for n, seconds in passes[name].items()} for name in (target, row["draft"])
    )
    one = analysis.pass_seconds(whole, batch)
    c = analysis.pass_seconds(draft, batch) / one
    wide = analysis.pass_seconds(whole, batch * (gamma + 1)) / one
    return {
        "c": c,
        "pass_over_drafts": wide,
        "predicted": analysis.speedup(alpha, gamma, c),
        "expected": analysis.expected_tokens(alpha, gamma) / (gamma * c + wide),
    }


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to see that it runs.")
    ] = False,
    dtype: str = "float32",
    target: Annotated[str, typer.Option(help="Of the table: base or large.")] = "base",
    max_tokens: int = 32,
    rounds: int = 5,
    minutes: Annotated[
        float | None, typer.Option(help="Begin no further cell of the table after so many.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Texts at once; repeatable.")] = None,
    part: Annotated[str, typer.Option(help="table, mender, pass, or both of the first.")] = "both",
    out: Path = Path("bench-results"),
) -> None:
    """Measure, and write planted.json, bundled-mender.json or pass.json."""
    if target not in TARGETS:
        raise typer.BadParameter(f"target {target!r} is unknown: use base or large")
    if part not in ("table", "mender", "both", "pass"):
        raise typer.BadParameter(f"part {part!r} is unknown: use table, mender, pass or both")
    out.mkdir(parents=True, exist_ok=True)
    with Running() as running:
        if part == "pass":
            batches = batch or ([2] if quick else [1, 8])
            found = encoder_passes.measured(quick, 1 if quick else rounds, batches, running)
            write(out / "pass.json", found)
            return
        if part != "mender":
            tokens, turns = (8, 1) if quick else (max_tokens, rounds)
            batches = batch or ([1, 2] if quick else [1, 4, 8])
            shapes = TINY if quick else SHAPES
            until = None if minutes is None else time.monotonic() + 60 * minutes
            path = out / "planted.json"
            table(path, shapes, target, dtype, tokens, turns, batches, until, running)
        if part != "table":
            write(out / "bundled-mender.json", mender(quick, running))


def table(
    path: Path,
    shapes: dict[str, dict[str, int]],
    target: str,
    dtype: str,
    tokens: int,
    rounds: int,
    batches: Sequence[int],
    until: float | None,
    told: Any,
) -> None:
    """The cells of Table 2 at every batch size that `path` does not hold yet, one after another."""
    load = clock.load()
    asked = {
        "label": LABEL,
        "target": target,
        "shapes": shapes,
        "dtype": dtype,
        "reads": READS,
        "max_tokens": tokens,
        "rounds": rounds,
    }
    found = kept(path, asked)
    drafts = tuple(name for name in shapes if [*shapes].index(name) <= [*shapes].index(target))
    cases = [Case(task, t, b, drafts) for b in batches for task in READS for t in (0.0, 1.0)]
    done = {(row["task"], row["temperature"], row["batch"]) for row in found["rows"]}
    left = [case for case in cases if (case.task, case.temperature, case.batch) not in done]
    if not left:
        print("nothing is left to measure:", path)
        return
    models = {name: made(shapes[name], getattr(torch, dtype)) for name in drafts}
    llm = dp.LLM(models[target], speculate=None, max_batch=max(batches))
    sizes = {b * n for b in batches for n in (1, 4, 6, 8)}
    passes = found.setdefault("pass_seconds", {})
    if any(str(n) not in passes.get(name, {}) for n in sizes for name in models):
        for name, model in models.items():
            told(f"passes of {name}", None)
            runner = llm.runner if name == target else dp.LLM(model, speculate=None).runner
            took = costs.pass_seconds(runner, 32, sorted(sizes), rounds=5 if rounds == 1 else 15)
            passes.setdefault(name, {}).update({str(n): s for n, s in took.items()})
    found |= {
        "parameters": {n: sum(p.numel() for p in m.parameters()) for n, m in models.items()},
        "threads": llm.runner.threads or torch.get_num_threads(),
        "machine": clock.machine(),
        "processor": clock.processor(),
        "load_before": load,
    }
    for case in left:
        if until is not None and time.monotonic() > until:
            print(f"{len(left) - left.index(case)} cells are left: run this again to go on")
            return
        rows = timed(case, llm, models, tokens, rounds, told)
        found["rows"] += [row | predicted(row, passes, target) for row in rows]
        found["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        write(path, found)


def mender(quick: bool, told: Any) -> dict[str, Any]:
    """`draftproof bench bundled-mender` over held-out damage, transformers beside it."""
    options = suite.Options(
        model=MENDER,
        draft=MENDER,
        methods=("none", "ngram", "draft", "auto"),
        against=("transformers",),
        prompts=("damaged",),
        num_prompts=2 if quick else 24,
        max_tokens=16 if quick else 96,
        batches=(1, 2) if quick else (1, 8),
        rounds=1 if quick else 5,
        assistant_lengths=(5,) if quick else (3, 5, 8),
    )
    return suite.run(options, told).as_dict()


if __name__ == "__main__":
    typer.run(main)
