"""What a precision costs: every number beside one from another way of computing it."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof import quality
from draftproof.quality import BLOCK, Quality
from spelling import tokenizer

RNG = Random(3)
ROWS = [[RNG.randrange(3, 97) for _ in range(BLOCK + 21)] for _ in range(3)]
PROMPTS = [row[:9] for row in ROWS]
OTHERS = {"near": 0.01, "far": 0.2}  # shares of other weights


def target() -> PreTrainedModel:
    return tiny.model(initializer_range=0.1, max_position_embeddings=200)


def other(name: str) -> PreTrainedModel:
    return tiny.relative(target(), OTHERS[name])


def load(name: str) -> dp.LLM:
    if name not in OTHERS:
        raise ValueError(f"{name} is too little\nof everything")
    return dp.LLM(other(name), speculate=None)


def compare(*names: str, tick: Any = lambda text, share: None, load: Any = load) -> Quality:
    with dp.LLM(target(), speculate=None) as reference:
        return quality.compare(load, reference, names, ROWS, PROMPTS, 12, tick)


def logits(model: PreTrainedModel) -> Tensor:
    """(rows, T, V), by transformers."""
    with torch.inference_mode():
        answer: Tensor = model(torch.tensor(ROWS)).logits
    return answer


def greedy(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    return [int(token) for token in made[0, len(prompt) :]]


@pytest.mark.parametrize("name", OTHERS)
def test_every_number_is_that_of_another_way(name: str) -> None:
    (found,) = (made := compare(name)).costs
    want, got, following = logits(target()), logits(other(name)), torch.tensor(ROWS)[:, 1:]
    for reading, row in ((made.perplexity, want), (found.perplexity, got)):
        loss = F.cross_entropy(row[:, :-1].flatten(0, 1), following.flatten())
        assert reading == pytest.approx(float(loss.exp()), rel=1e-4)
    laws = [row[:, :-1].log_softmax(-1) for row in (got, want)]
    each = F.kl_div(*laws, log_target=True, reduction="none").sum(-1)
    assert found.divergence == pytest.approx(float(each.mean()), rel=1e-3, abs=1e-7)
    assert found.divergence_p99 == pytest.approx(float(each.quantile(0.99)), rel=1e-3, abs=1e-6)
    assert found.by_position[1] == pytest.approx(float(each[:, 16:32].mean()), rel=1e-3, abs=1e-7)
    assert len(found.by_position) == math.ceil((len(ROWS[0]) - 1) / 16)
    same = (want.argmax(-1) == got.argmax(-1))[:, :-1]
    assert found.agreement == pytest.approx(float(same.double().mean()))
    texts = [(greedy(target(), prompt), greedy(other(name), prompt)) for prompt in PROMPTS]
    for (one, two), parted in zip(texts, found.parted, strict=True):
        assert (one == two) if parted is None else one[:parted] == two[:parted]
        assert parted is None or one[parted] != two[parted]
    assert made.tokens == 3 * (len(ROWS[0]) - 1)
    assert found.weight_bytes == sum(p.numel() * p.element_size() for p in target().parameters())


def test_the_same_model_costs_nothing_and_more_noise_more() -> None:
    (same,) = compare("same", load=lambda name: dp.LLM(target(), speculate=None)).costs
    assert same.divergence == 0 and same.agreement == 1 and same.same_texts == len(PROMPTS)
    assert same.parted == [None] * 3 and math.isinf(same.parts_after)
    near, far = compare("near", "far").costs
    assert 0 < near.divergence < 0.1 * far.divergence and near.agreement > far.agreement
    assert near.divergence < near.divergence_p99


def test_what_is_impossible_for_the_reference_costs_nothing() -> None:
    want = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    got = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]]).log()
    assert quality.divergence(want, got).tolist() == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2, 3], [1, 2], 2),
        ([], [7], 0),
    ],
)
def test_where_texts_part(one: list[int], other: list[int], shared: int | None) -> None:
    assert quality.parting(one, other) == quality.parting(other, one) == shared


def test_windows_begin_as_a_text_does() -> None:
    class Beginning:
        """Ids of letters behind a beginning."""

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [1] * add_special_tokens + [ord(c) for c in text]}

    assert quality.windows(Beginning(), "abcdefgh", 4) == [[1, 97, 98, 99], [1, 100, 101, 102]]
    assert quality.windows(Beginning(), "abcdefgh", 4, limit=5) == [[1, 97, 98, 99]]
    assert quality.windows(tokenizer(), "abcd", 2) == [[67, 68], [69, 70]]
    with pytest.raises(ValueError, match="has 3 tokens, fewer than a window of 9: give more of it"):
        quality.windows(tokenizer(), "abc", 9)
    with pytest.raises(ValueError, match="the text is empty"):
        quality.windows(tokenizer(), "", 9)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_prompts_are_different_pieces_of_the_text(count: int) -> None:
    rows = [[*range(at, at + 200)] for at in (0, 1000, 2000)]
    found = quality.openings(rows, count)
    assert len(found) == len({tuple(prompt) for prompt in found}) == count
    for prompt in found:
        assert len(prompt) == quality.OPENING
        assert any(prompt == row[at : at + len(prompt)] for row in rows for at in range(200))


def test_a_short_text_gives_no_empty_prompts() -> None:
    assert all(len(each) == quality.OPENING for each in quality.openings([[*range(64)]], 100))
    assert quality.openings([[1, 2, 3]], 5) == [[1, 2, 3]]


def test_what_is_refused_is_named_and_the_others_are_measured() -> None:
    found = compare("tiny", "near")
    assert [each.precision for each in found.costs] == ["near"]
    assert found.refused == {"tiny": "tiny is too little of everything"}


@pytest.mark.parametrize("part", ["far: loading", "far: window 2 of 3", "far: text 2 of 3"])
def test_an_interrupt_leaves_what_is_finished(part: str) -> None:
    def tick(text: str, share: float | None) -> None:
        if text == part:
            raise KeyboardInterrupt

    found = compare("near", "far", tick=tick)
    assert [each.precision for each in found.costs] == ["near"] and found.incomplete == "far"


def test_progress_never_goes_back() -> None:
    shares: list[float] = []
    compare("near", "far", tick=lambda text, share: shares.append(share or 0.0))
    assert shares == sorted(shares) and shares[0] == 0 and 0.9 < shares[-1] < 1


def test_the_reference_is_in_half_precision_where_memory_is_short(monkeypatch: Any) -> None:
    monkeypatch.setattr(quality, "available_bytes", lambda device: 8 * 10**9)
    assert quality.reference_precision(10**8) == "float32"
    assert quality.reference_precision(10**10) == "bfloat16"
    assert quality.reference_precision(None) == "float32"
