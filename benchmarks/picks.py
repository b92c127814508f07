"""What a drawn token costs after its logits are there: the kernels beside torch, one thread.

    python benchmarks/picks.py build/smollm2

Rows of a model's own logits; sides in turn, medians of `--rounds`; times of the process, so that
neighbours change little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import draftproof as dp
from draftproof.runners.base import Work
from draftproof.sampling import History, Noise, SamplingParams, pick
from draftproof.sampling import compiled as fast
from draftproof.tree import TokenTree

TEXT = "Once upon a time there was a dog called Max, who lived in a small house by the sea. "
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 50},
    {"temperature": 0.7, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
]


def logits(model: str, count: int) -> Tensor:
    """Rows (N, V) after the tokens of a text."""
    with dp.LLM(model, dtype="bfloat16", speculate=None) as llm:
        ids = (llm.tokenizer(TEXT)["input_ids"] * 9)[:count]
        (output,) = llm.runner.forward([Work(-1, [], TokenTree.chain(ids))])
        return output.logits.float().clone()


def seconds(rows: Tensor, params: SamplingParams, seed: int) -> float:
    """Of the process, for each row."""
    history, noise = History([]), Noise(seed, 0)
    began = time.process_time()
    for position, row in enumerate(rows):
        pick(row, params, history, [], noise, position)
    return (time.process_time() - began) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = logits(asked.model, asked.rows)
    print(f"{rows.shape[1]:,} tokens; us a pick: kernels, torch, torch over kernels")
    for settings in SETTINGS:
        params, sides = SamplingParams(**settings), ([], [])
        for seed in range(asked.rounds):
            sides[0].append(seconds(rows, params, seed))
            with mock.patch.object(fast, "found", lambda: None):
                sides[1].append(seconds(rows, params, seed))
        ours, theirs = (1e6 * statistics.median(side) for side in sides)
        print(f"{settings}: {ours:.0f}, {theirs:.0f}, {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
