"""Heads that are often right, and heads of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from cases import PROMPTS, SAMPLED
from draftproof.heads.module import Heads

D, V, K = 48, tiny.VOCABULARY, 3
CHAIN = [(0,), (0, 0), (0, 0, 0)]
STATIC = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)]


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 24, "seed": 7, "ignore_eos": True, **options})


def random(*shape: int, seed: int = 0, scale: float = 0.1) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_heads(heads: int = K, layers: int = 1, bias: bool = True, own: bool = True) -> Heads:
    return Heads(
        random(heads, layers, D, D),
        random(heads, layers, D, seed=1) if bias else None,
        random(heads, V, D, seed=2) if own else None,
        vocab_size=V,
    )


def accepted(outs: Sequence[dp.Completion]) -> int:
    return sum(out.stats.accepted for out in outs)


def tokens_of(outs: Sequence[dp.Completion]) -> list[list[int]]:
    assert all(out.warnings == [] and out.error is None for out in outs)
    return [out.token_ids for out in outs]


@cache
def target(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    changes: dict[str, Any] = {"tie_word_embeddings": False}  # else Gemma repeats itself
    return tiny.model(name, dtype=dtype, **changes, **sizes(dtype))


def sizes(dtype: torch.dtype) -> dict[str, Any]:
    """What the native runner asks for."""
    return {"head_dim": 16} if dtype == torch.bfloat16 else {}


def llm_of(name: str, heads: Any = None, dtype: torch.dtype = torch.float64, **more: Any) -> dp.LLM:
    return dp.LLM(target(name, dtype), speculate=heads, **more)


@cache
def plain(name: str, case: str, dtype: torch.dtype = torch.float64) -> list[list[int]]:
    """Decoding without drafts, one prompt at a time."""
    runner = "native" if dtype == torch.bfloat16 else "torch"
    with llm_of(name, dtype=dtype, max_batch=1, runner=runner) as llm:
        return tokens_of(llm.generate(PROMPTS, params(**case_of(case))))


def case_of(case: str) -> dict[str, Any]:
    return {} if case == "greedy" else SAMPLED[case]


@cache
def fitted(name: str, dtype: torch.dtype = torch.float64) -> Heads:
    """W2 of each head by ridge regression, with the accuracies of its ten best guesses."""
    model, states, labels = target(name, dtype), [], []
    for case in ("greedy", "hot"):
        for prompt, output in zip(PROMPTS, plain(name, case, dtype), strict=True):
            ids = torch.tensor([*prompt, *output])
            with torch.no_grad():
                hidden = model(ids[None], output_hidden_states=True).hidden_states[-1][0]
            states.append(hidden[: -K - 1].double())
            labels.append(torch.stack([ids[k + 1 : len(ids) - K + k] for k in range(1, K + 1)]))
    h, y = torch.cat(states), torch.cat(labels, 1)  # (N, d), (K, N)
    onehot = torch.nn.functional.one_hot(y, V).double()  # (K, N, V)
    outputs = onehot.transpose(1, 2) @ h @ torch.linalg.inv(h.T @ h + 0.1 * torch.eye(D))
    best = (h @ outputs.transpose(1, 2)).topk(10).indices
    return Heads(
        torch.zeros(K, 1, D, D),
        None,
        10 * outputs,
        vocab_size=V,
        accuracies=(best == y[..., None]).double().mean(1).tolist(),
    )


KINDS: dict[str, Any] = {"static": STATIC, "calibrated": "calibrated", "grown": "grown"}
