"""The joint law of what an encoder-decoder writes, counted against the products of its own passes.

All texts of three tokens over four ids; the planted defect draws a correction from the target's
law instead of what the draft's leaves of it.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers

import draftproof as dp
from chi_square import chi_square_p
from draftproof import verify
from encoders import T5
from marking import all_but_some_slow

IDS, NEW, RUNS = 4, 3, 1500
READ = [1, 2, 3, 1]
TEMPERATURE = 4.0


@cache
def made(seed: int) -> Any:
    options = {**T5, "vocab_size": IDS, "num_layers": 1, "eos_token_id": None}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.T5Config(**options)
        return transformers.T5ForConditionalGeneration(config).double().eval()


def with_the_targets_encoder() -> Any:
    """Another decoder behind an equal encoder: what it makes of the input is read by both."""
    draft = copy.deepcopy(made(5))
    draft.encoder = copy.deepcopy(made(4).encoder)
    return draft


@cache
def law() -> dict[tuple[int, ...], float]:
    found = {}
    for path in itertools.product(range(IDS), repeat=NEW):
        text = torch.tensor([[0, *path]])
        with torch.no_grad():
            logits = made(4)(input_ids=torch.tensor([READ]), decoder_input_ids=text).logits[0]
        p = (logits / TEMPERATURE).softmax(-1)
        found[path] = float(torch.stack([p[i, t] for i, t in enumerate(path)]).prod())
    return found


def chain(model: Any) -> dp.DraftModel:
    return dp.DraftModel(model, 2, min_confidence=0.0, branch=1)


DRAFTS: dict[str, Callable[[], Any]] = {
    "chain": lambda: chain(made(5)),
    "shared encoder": lambda: chain(with_the_targets_encoder()),
    "siblings": lambda: dp.DraftModel(made(5), 2, min_confidence=0.0),
    "drafts": lambda: dp.SpecInfer([made(5), with_the_targets_encoder()], (2, 1)),
    "staged": lambda: dp.Staged(made(5), chain(made(6)), 2, min_confidence=0.0),
    "look-up": lambda: dp.NGram(min_ngram=1),
    "merged": lambda: [dp.NGram(min_ngram=1), chain(made(5))],
}


def p_value(rule: str, proposer: Any) -> float:
    llm = dp.LLM(made(4), rule=rule, speculate=proposer, max_batch=64)
    params = dp.SamplingParams(temperature=TEMPERATURE, max_tokens=NEW, n=RUNS, seed=1)
    done = llm.generate([READ], params)
    assert 0 < sum(one.stats.accepted for one in done) < sum(one.stats.drafted for one in done)
    llm.engine.check()
    return chi_square_p(Counter(tuple(one.token_ids) for one in done), law())


@pytest.mark.parametrize("rule", ["rejection", pytest.param("coupled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", all_but_some_slow(DRAFTS, "chain", "drafts", "merged"))
def test_joint_law(name: str, rule: str) -> None:
    assert p_value(rule, DRAFTS[name]()) > 1e-5


@pytest.mark.parametrize(
    "name", all_but_some_slow(["chain", "shared encoder", "siblings", "drafts", "staged"], "drafts")
)
def test_the_test_finds_corrections_from_the_wrong_law(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = verify._round

    def wrong(tree: Any, u: int, target: Any, coins: Any) -> Any:
        left, accepted = inner(tree, u, target, coins)
        return (target if accepted is None else left), accepted

    monkeypatch.setattr(verify, "_round", wrong)
    assert p_value("rejection", DRAFTS[name]()) < 1e-5
