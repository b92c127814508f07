"""The method of docs/adding_a_method.md keeps its promises, and its code runs as it stands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.certify import certify

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding_a_method.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
PROMPTS = [[7, 8, 9, 7, 8, 9, 7, 8], [11 + i for i in range(21)], [5]]
SETTINGS = {
    "greedy": dp.SamplingParams(max_tokens=40, seed=3, ignore_eos=True),
    "sampled": dp.SamplingParams(
        max_tokens=80, seed=3, ignore_eos=True, temperature=0.7, frequency_penalty=0.1
    ),
}


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", seed=3, dtype=torch.float64)


def method() -> Any:
    """The class of the page, from a namespace of its own."""
    space: dict[str, Any] = {"__name__": "page"}
    exec(BLOCKS[0], space)
    return space["Bigrams"]


def written(llm: dp.LLM, params: dp.SamplingParams) -> list[dp.Completion]:
    done = llm.generate(PROMPTS, params)
    assert not any(one.warnings or one.error for one in done)
    return done


def test_it_is_short() -> None:
    body = BLOCKS[0][BLOCKS[0].index("class ") :]
    assert len(body.splitlines()) < 40


def test_the_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(block, space)
    assert space["out"].stats.accepted and not space["out"].warnings
    assert space["found"].code != 1, capsys.readouterr().out  # 3: near-ties, on other machines


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_tokens_are_those_of_plain_decoding(setting: str) -> None:
    proposer, params = method()(), SETTINGS[setting]
    with dp.LLM(target(), speculate=None) as llm:
        plain = [one for prompt in PROMPTS for one in llm.generate([prompt], params)]
    with dp.LLM(target(), speculate=proposer) as llm:
        done = written(llm, params)
    assert [one.token_ids for one in done] == [one.token_ids for one in plain]
    assert sum(one.stats.drafted for one in done) and sum(one.stats.accepted for one in done)
    assert not proposer.tables  # every request was released


def test_it_works_beside_others_and_under_the_other_rule() -> None:
    params = SETTINGS["greedy"]
    with dp.LLM(target(), speculate=None) as llm:
        plain = [one.token_ids for one in llm.generate(PROMPTS, params)]
    with dp.LLM(target(), speculate=[method()(), dp.NGram(min_ngram=1)]) as llm:
        assert [one.token_ids for one in written(llm, params)] == plain
    with dp.LLM(target(), speculate=method()(), rule="rejection") as llm:
        assert [one.token_ids for one in written(llm, params)] == plain


def test_it_is_certified() -> None:
    with dp.LLM(target(), speculate=None) as llm:
        begun = llm.generate(PROMPTS, SETTINGS["greedy"])  # short answers repeat only what is there
        prompts = [one.prompt_token_ids + one.token_ids for one in begun]
        found = certify(llm, {"bigrams": method()}, prompts, rules=["coupled"], max_tokens=16)
    assert found.code == 0, found.verdict
    assert sum(case.whole.accepted for case in found.cases)


def test_it_refuses_to_draft_nothing() -> None:
    with pytest.raises(ValueError, match="drafts nothing"):
        method()(0)
