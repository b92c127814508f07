"""What an engine's step costs besides what the table of passes says, in words for `scale.py`.

    python benchmarks/scale/own.py bundled --threads 1 --costs costs.json

The table has passes over the rows of one text. Here so many texts are written at once, each behind
so many tokens of its own, whose keys and values every step reads: the seconds of a step by texts
and tokens, less the table's, are a plane. Plain steps, greedy. The server's part is not in here.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import draftproof as dp
from draftproof.demo import precision
from scale import read_costs

TEXTS, BEHIND = (1, 4, 8, 16), (32, 128, 384)
SHORT, LONG = 8, 40  # tokens; what the longer one takes more has no prompt in it


def step_seconds(llm: dp.LLM, texts: int, behind: int) -> float:
    """Of a step that writes a token of each of so many texts."""
    rng = random.Random(behind)
    vocabulary = llm.runner.vocabulary
    prompts = [[rng.randrange(vocabulary) for _ in range(behind)] for _ in range(texts)]
    took = []
    for tokens in (SHORT, LONG):
        began = time.perf_counter()
        llm.generate(prompts, dp.SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        took.append(time.perf_counter() - began)
    return (took[1] - took[0]) / (LONG - SHORT)


def main(
    model: Annotated[str, typer.Argument(help="As for `draftproof serve`.")],
    costs: Annotated[Path, typer.Option(help="Of `draftproof info MODEL --measure --json`.")],
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    dtype: Annotated[str | None, typer.Option(help="As for `draftproof serve`.")] = None,
    rounds: Annotated[int, typer.Option(help="Of measuring, in turn.")] = 5,
) -> None:
    """What a step costs besides the table's passes."""
    table = read_costs(costs)
    natural = precision(dtype, "auto", "auto") if model == "bundled" else dtype or "auto"
    places = max(TEXTS)
    with dp.LLM(
        model, speculate=None, dtype=natural, threads=threads, max_batch=places, prefix_cache=False
    ) as llm:
        points = list(itertools.product(TEXTS, BEHIND))
        rows = [[step_seconds(llm, *point) for point in points] for _ in range(rounds + 1)]
    took = [statistics.median(each) for each in zip(*rows[1:], strict=True)]  # the first warms up
    held = [texts * (behind + (SHORT + LONG) / 2) for texts, behind in points]
    plane = np.array([[1, texts, each] for (texts, _), each in zip(points, held, strict=True)])
    more = [each - table.seconds(texts) for (texts, _), each in zip(points, took, strict=True)]
    weights = 1 / np.array(took)  # so that each point counts by its share
    found, *_ = np.linalg.lstsq(plane * weights[:, None], more * weights, rcond=None)
    for (texts, behind), each, extra in zip(points, took, plane @ found, strict=True):
        fitted = 1e3 * (table.seconds(texts) + extra)
        print(f"{texts:3} texts behind {behind:4}: {1e3 * each:7.2f} ms, fitted {fitted:7.2f}")
    step, text, token = np.maximum(found, 0)
    print(f"--step-ms {1e3 * step:.3f} --text-ms {1e3 * text:.3f} --token-us {1e6 * token:.3f}")


if __name__ == "__main__":
    typer.run(main)
