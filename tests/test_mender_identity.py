"""Every method on the bundled encoder-decoder in float32: not a token differs from plain decoding.

Greedy and coupled, alone, three of different lengths, and eight. The slow test has 2,000 texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import draftproof as dp
from draftproof.bundled.damaged import held_out

METHODS: dict[str, Callable[[], Any]] = {
    "ngram": dp.NGram,
    "automaton": dp.SuffixAutomaton,
    "draft": lambda: dp.DraftModel("bundled-mender"),
    "tree": lambda: dp.SpecInfer(["bundled-mender"]),
    "staged": lambda: dp.Staged("bundled-mender", dp.NGram()),
    "exit": lambda: dp.EarlyExit(1),
    "lookahead": dp.Lookahead,
    "auto": dp.Auto,
}
BATCHES = 1, 3, 8
TEMPERATURES = 0.0, 0.8


def params(number: int, temperature: float, most: int) -> dp.SamplingParams:
    """Of a text; lengths differ, so that a batch shrinks."""
    return dp.SamplingParams(temperature=temperature, seed=number, max_tokens=most - number % 5)


def check(name: str, texts: list[str], most: int) -> int:
    """Every batch and temperature over these texts; how many texts were compared."""
    compared = drafted = accepted = 0
    with dp.LLM("bundled-mender", dtype="float32", speculate=None, max_batch=8) as llm:
        for temperature in TEMPERATURES:
            asked = [params(number, temperature, most) for number in range(len(texts))]
            llm.use(None)
            plain = [
                llm.generate([text], [each])[0].token_ids
                for text, each in zip(texts, asked, strict=True)
            ]
            llm.use(METHODS[name]())
            for batch in BATCHES:
                for at in range(0, len(texts), batch):
                    some = slice(at, at + batch)
                    for one, own in zip(
                        llm.generate(texts[some], asked[some]), plain[some], strict=True
                    ):
                        assert one.token_ids == own, (name, batch, temperature, at)
                        compared += 1
                        drafted += one.stats.drafted
                        accepted += one.stats.accepted
    assert (drafted and accepted) or name == "auto"  # it drafts where that pays
    return compared


def damaged(count: int, seed: int) -> list[str]:
    """What is read, of 60 to 240 characters."""
    return [pair.text for pair in held_out(count, seed, lambda pair: len(pair.text) < 160)]


@pytest.mark.parametrize("name", METHODS)
def test_a_sample_has_the_tokens_of_plain_decoding(name: str) -> None:
    assert check(name, damaged(4, seed=5), 16) == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_two_thousand_texts_have_the_tokens_of_plain_decoding(name: str) -> None:
    """42 texts x 3 batches x 2 temperatures x 8 methods."""
    assert check(name, damaged(42, seed=6), 64) * len(METHODS) > 2000
