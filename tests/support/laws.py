"""The law of the first tokens: counted, and computed by the model's own passes over all of them."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import draftproof as dp
from chi_square import chi_square_p
from sampling_oracles import oracle_law

V = 4
RUNS = 700  # each planted defect of test_method_laws.py then has p < 1e-8


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
            x *= oracle_law(row, params, prompt, sequence[:i]).get(t, 0.0)
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
