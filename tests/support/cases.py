"""Prompts, and ways of sampling that together use every parameter."""

from __future__ import annotations

from typing import Any

PROMPTS = [
    [5],
    [7, 8, 9, 7, 8, 9, 7, 8],
    [(11 * i * i + 3) % 90 + 3 for i in range(37)],
    [20, 21, 22, 23, 24] * 4,
]


SAMPLED: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.3},
    "one": {"temperature": 1.0},
    "hot": {"temperature": 1.7},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "min_p": {"temperature": 1.7, "min_p": 0.05},
    "all_cuts": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.4},
    "presence": {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -0.5},
    "frequency": {"temperature": 0.7, "frequency_penalty": 0.9},
    "greedy_penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "bias": {"temperature": 1.0, "logit_bias": {5: 6.0, 7: -100.0, 2: 4.0}},
    "bans": {"temperature": 0.7, "bad_token_ids": tuple(range(3, 40))},
    "min_tokens": {"temperature": 1.0, "logit_bias": {2: 60.0}, "min_tokens": 7},
    "stops": {"temperature": 1.0, "stop_token_ids": tuple(range(40, 48))},
    "everything": {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {9: 3.0},
        "bad_token_ids": (4, 6),
        "min_tokens": 5,
    },
}
