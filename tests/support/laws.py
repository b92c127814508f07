"""The law of the first tokens: counted, and computed by the model's own passes over all of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import draftproof as dp
from chi_square import chi_square_p


def slow_law(row: list[float], params: dp.SamplingParams, prompt: list[int], output: list[int]):
    """Adjusted and truncated logits over the temperature: {token: logit}; vLLM's order."""
    for t in range(len(row)):
        if t in prompt or t in output:
            row[t] = (
                row[t] / params.repetition_penalty
                if row[t] > 0
                else row[t] * params.repetition_penalty
            )
        row[t] -= params.frequency_penalty * output.count(t)
        row[t] -= params.presence_penalty * (t in output)
        row[t] += (params.logit_bias or {}).get(t, 0.0)
    banned = set(params.bad_token_ids)
    if len(output) < params.min_tokens:
        banned |= {2, *params.stop_token_ids}
    left = {t: x for t, x in enumerate(row) if t not in banned}
    if params.temperature == 0:
        return left
    left = {t: x / params.temperature for t, x in left.items()}
    top = max(left.values())
    left = {t: x for t, x in left.items() if math.exp(x - top) >= params.min_p}
    order = sorted(left, key=lambda t: (-left[t], t))
    if params.top_k > 0:
        order = order[: params.top_k]
    total = math.fsum(math.exp(left[t] - top) for t in order)
    kept, mass = [], 0.0
    for t in order:
        if mass >= params.top_p * total and kept:
            break
        kept.append(t)
        mass += math.exp(left[t] - top)
    return {t: left[t] for t in kept}


V = 4


@cache
def small(seed: int, layers: int = 1) -> PreTrainedModel:
    """A Llama over V tokens, far from uniform."""
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.35,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).double().eval()


def exact_law(model: PreTrainedModel, params: dp.SamplingParams, prompt: list[int], length: int):
    """The joint law of the first tokens, by the model's own passes over all sequences."""
    law = {}
    sequences = list(itertools.product(range(V), repeat=length))
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *s] for s in sequences])).logits
    for sequence, rows in zip(sequences, logits, strict=True):
        x = 1.0
        for i, t in enumerate(sequence):
            row = rows[len(prompt) - 1 + i].tolist()
            left = slow_law(row, params, prompt, list(sequence[:i]))
            total = math.fsum(math.exp(y) for y in left.values())
            x *= math.exp(left[t]) / total if t in left else 0.0
        law[sequence] = x
    assert abs(sum(law.values()) - 1) < 1e-9
    return law


def check_law(
    rule: str,
    proposer: Any,
    runs: int,
    max_tokens: int = 3,
    length: int = 3,
    target: PreTrainedModel | None = None,
    **options: Any,
) -> None:
    target = target or small(0)
    params = dp.SamplingParams(
        **{"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, **options}
    )
    prompt = [1, 3]
    seeds = [dp.SamplingParams(**{**vars_of(params), "seed": 1000 + seed}) for seed in range(runs)]
    with dp.LLM(target, speculate=proposer, rule=rule, max_batch=100) as llm:
        outs = llm.generate([prompt] * runs, seeds)
    counts = Counter(tuple(out.token_ids[:length]) for out in outs)
    assert chi_square_p(counts, exact_law(target, params, prompt, length)) > 1e-5
    if proposer is not None:
        drafted = sum(out.stats.drafted for out in outs)
        assert 0 < sum(out.stats.accepted for out in outs) < drafted  # both branches were taken


def vars_of(params: dp.SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


WARPED = {"temperature": 0.7, "top_k": 3, "frequency_penalty": 0.6}
