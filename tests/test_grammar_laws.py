"""The joint law under a grammar: the model's own, masked and renormalised token by token."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import draftproof as dp
from chi_square import chi_square_p
from laws import RUNS, small
from sampling_oracles import oracle_law

LETTERS = "abcd"
TEXTS = ["aab", "aac", "abd", "bda", "bdb", "bdc", "cab", "dca", "dcb", "dcd"]
PROMPT = [1, 3]


@cache
def letters() -> PreTrainedTokenizerFast:
    """A token for each letter."""
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(LETTERS)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def masked_law(params: dp.SamplingParams) -> dict[tuple[int, ...], float]:
    """By the model's own rows; what may follow is told by the texts themselves."""
    law: dict[tuple[int, ...], float] = {}
    sequences = [tuple(map(LETTERS.index, text)) for text in TEXTS]
    with torch.no_grad():
        logits = small(0)(torch.tensor([[*PROMPT, *s] for s in sequences])).logits
    for sequence, rows in zip(sequences, logits, strict=True):
        x = 1.0
        for i, token in enumerate(sequence):
            allowed = {s[i] for s in sequences if s[:i] == sequence[:i]}
            row = rows[len(PROMPT) - 1 + i].tolist()
            row = [x if t in allowed else -float("inf") for t, x in enumerate(row)]
            x *= oracle_law(row, params, PROMPT, sequence[:i]).get(token, 0.0)
        law[sequence] = x
    assert abs(sum(law.values()) - 1) < 1e-9
    return law


DRAWN = {
    "plain": lambda: None,
    "draft": lambda: dp.DraftModel(small(1), 3, min_confidence=0.0),
    "shaped": lambda: dp.DraftModel(small(1), tree=[(0,), (1,), (0, 0), (1, 0), (1, 1)]),
    "specinfer": lambda: dp.SpecInfer([small(1), small(2)], expansion=(2, 1)),
    "lookahead": lambda: dp.Lookahead(3, 3, 3),
    "auto": lambda: dp.Auto(dp.DraftModel(small(1), 3, min_confidence=0.0)),
    "staged": lambda: dp.Staged(small(1), dp.NGram(min_ngram=1), 3, min_confidence=0.0),
}


ALIKE = ("shaped", "lookahead", "staged")  # to another one of these
CASES: list[tuple[str, dict[str, Any]]] = [(method, {}) for method in DRAWN]
CASES += [(method, {"top_p": 0.8}) for method in ("plain", "draft")]  # cuts are the target's own


@pytest.mark.parametrize(
    ("method", "options"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in ALIKE)) for case in CASES],
)
@pytest.mark.parametrize("rule", ["rejection", pytest.param("coupled", marks=pytest.mark.slow)])
def test_the_joint_law_is_the_masked_one(rule: str, method: str, options: dict[str, Any]) -> None:
    grammar = dp.Grammar.choice(TEXTS)
    params = [
        dp.SamplingParams(temperature=1.0, seed=1000 + seed, grammar=grammar, **options)
        for seed in range(RUNS)
    ]
    with dp.LLM(
        small(0), tokenizer=letters(), speculate=DRAWN[method](), rule=rule, max_batch=100
    ) as llm:
        done = llm.generate([PROMPT] * RUNS, params)
    assert {one.finish_reason for one in done} == {"stop"}
    assert not any(one.warnings for one in done)
    law = masked_law(params[0])
    counts = Counter(tuple(one.token_ids) for one in done)
    assert chi_square_p(counts, law) > 1e-5
    if method not in ("plain", "auto"):
        assert sum(one.stats.accepted for one in done) > 0


def test_the_law_of_whole_texts_would_be_found_out() -> None:
    """The model's law of whole texts given that they are valid is another one."""
    params = dp.SamplingParams(temperature=1.0)
    law = masked_law(params)
    joint: dict[tuple[int, ...], float] = {}
    with torch.no_grad():
        for sequence in law:
            rows = small(0)(torch.tensor([[*PROMPT, *sequence]])).logits[0].softmax(-1)
            joint[sequence] = float(
                torch.tensor([rows[1 + i, t] for i, t in enumerate(sequence)]).prod()
            )
    total = sum(joint.values())
    counts = Counter({s: round(RUNS * x / total) for s, x in joint.items()})
    assert chi_square_p(counts, law) < 1e-5
