"""What `draftproof tune` chooses, beside settings that are all run.

    python benchmarks/exhaustive.py --model bundled --draft bundled --out docs/tuning/bundled.json

At each batch size: `tune` on the first prompts; then, on the same prompts, a grid of settings in
turn with plain decoding, half of them the best by its predictions, half spread over the rest. The
best of the grid and the choice are run once more beside each other, as the best of many owes some
of it to luck. At last the choice on as many other prompts of the kind. Every text is compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import draftproof as dp
from draftproof import prompts as prompt_files
from draftproof import tuning
from draftproof.cli.progress import Running
from draftproof.profiles import Choice
from draftproof.sampling import SamplingParams
from draftproof.tuning import recording, trying
from draftproof.tuning.ranking import Row
from draftproof.tuning.run import BATCHES
from draftproof.tuning.timing import Loaded
from never_slower import records

Prompts = Sequence[tuple[list[int], str]]  # token ids, and the name of the group
NEVER = float("inf")


def grid(rows: Sequence[Row], size: int) -> list[Row]:
    """So many settings: the best half by prediction, and as many spread over the others."""
    drafting = [row for row in rows if row.choice.parts]
    best, others = drafting[: size - size // 2], drafting[size - size // 2 :]
    step = max(1, len(others) // (size // 2))
    return best + others[::step][: size // 2]


def ratio(above: trying.Trial, below: trying.Trial) -> float:
    """How many times as fast the first is: the median of the rounds."""
    found = above.speedup(below)
    assert found is not None
    return found


def told(trial: trying.Trial, plain: trying.Trial) -> dict[str, Any]:
    return {
        "setting": trial.choice.name,
        "measured": ratio(trial, plain),
        "tokens_per_step": trial.tokens / trial.steps,
        "seconds": trial.seconds,
        "differing": trial.differing,
    }


def judged(
    llm: dp.LLM,
    chosen: Choice,
    rows: Sequence[Row],
    sets: tuple[Prompts, Prompts],
    batch: int,
    given: Any,
    running: trying.Tick,
) -> dict[str, Any]:
    """Everything of one batch size."""
    params = SamplingParams(
        temperature=given["temperature"], max_tokens=given["max_tokens"], seed=0
    )
    load = Loaded()

    def run(prompts: Prompts, choices: Sequence[Choice]) -> list[trying.Trial]:
        ids, groups = zip(*prompts, strict=True)
        texts = recording.write(llm, ids, groups, params, [])
        return trying.run(llm, texts, choices, params, load, batch, given["rounds"], running, NEVER)

    picked = grid(rows, given["settings"])
    plain, *trials = run(sets[0], [row.choice for row in picked])
    fastest = min(trials, key=lambda trial: statistics.median(trial.seconds))
    plain_again, again, best_again = run(sets[0], [chosen, fastest.choice])
    plain_other, other = run(sets[1], [chosen])
    (row,) = (row for row in rows if row.choice == chosen)
    return {
        "batch": batch,
        "choice": chosen.name,
        "predicted": row.speedup,
        "interval": [row.low, row.high],
        "measured": ratio(again, plain_again),
        "on_other_prompts": ratio(other, plain_other),
        "best_of_grid": fastest.choice.name,
        "choice_over_best": ratio(again, best_again),
        "differing": again.differing + best_again.differing + other.differing,
        "grid": [
            told(trial, plain) | {"predicted": each.speedup}
            for each, trial in zip(picked, trials, strict=True)
        ],
        "plain_seconds": plain.seconds,
    }


def main(
    model: str = "bundled",
    draft: Annotated[list[str] | None, typer.Option(help="A model or folder; repeatable.")] = None,
    heads: Annotated[list[str] | None, typer.Option(help="A folder; repeatable.")] = None,
    prompts: str = "held-out",
    num_prompts: Annotated[int, typer.Option(help="Of each of both sets.")] = 8,
    chat: bool = False,
    max_tokens: int = 128,
    temperature: float = 0.0,
    batch: Annotated[list[int] | None, typer.Option(help="1 and 8 unless given.")] = None,
    settings: Annotated[int, typer.Option(help="Of the grid.")] = 24,
    rounds: int = 5,
    dtype: str = "bfloat16",
    threads: int = 2,
    out: Annotated[Path, typer.Option(help="JSON of all.")] = Path("bench-results/exhaustive.json"),
) -> None:
    """Measure, print a table for each batch size, and write all of it."""
    given = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "settings": settings,
    }
    batches = batch or [*BATCHES]
    with (
        dp.LLM(model, speculate=None, dtype=dtype, threads=threads, max_batch=max(batches)) as llm,
        Running() as running,
    ):
        listed = prompt_files.read([prompts], 2 * num_prompts, llm.tokenizer, chat, None)
        ids = [(each.ids(llm.tokenizer, ()), each.category) for each in listed]
        sets = ids[:num_prompts], ids[num_prompts:]
        found = []
        for size in batches:
            tuned = tuning.tune(
                llm,
                [each for each, _ in sets[0]],
                drafts=draft or [],
                heads=heads or [],
                groups=[group for _, group in sets[0]],
                max_tokens=max_tokens,
                temperatures=[temperature],
                batches=[size],
                tick=running,
            )
            found.append(judged(llm, tuned.choice, tuned.rows, sets, size, given, running))
            records.write(
                out,
                {"model": model, "drafts": draft, "heads": heads, "dtype": dtype}
                | {"prompts": prompts, "num_prompts": num_prompts}
                | given
                | {"cases": found},
            )
    for case in found:
        show(case)


def show(case: dict[str, Any]) -> None:
    table = Table("setting", "predicted", "measured", "tokens/step", "differ")
    for row in sorted(case["grid"], key=lambda row: -row["measured"]):
        cells = [f"{row[name]:.2f}" for name in ("predicted", "measured", "tokens_per_step")]
        table.add_row(row["setting"], *cells, str(row["differing"]))
    console = Console(highlight=False)
    console.print(f"batch {case['batch']}", table)
    low, high = case["interval"]
    between = "" if low is None else f" ({low:.2f} to {high:.2f} for other prompts)"
    console.print(
        f"chosen: {case['choice']}, predicted {case['predicted']:.2f}{between}, measured "
        f"{case['measured']:.2f}, on other prompts {case['on_other_prompts']:.2f}; "
        f"{case['choice_over_best']:.3f} of the best, {case['best_of_grid']}"
    )


if __name__ == "__main__":
    typer.run(main)
