"""Nothing of a text with another salt is reused, looked up, or seen in what a step takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from beside import run, some
from draftproof.proposers.suffix import Earlier

V = tiny.VOCABULARY


def llm(**options: Any) -> dp.LLM:
    model = tiny.model("llama", dtype=torch.float64, max_position_embeddings=300)
    return dp.LLM(model, **{"prefix_cache": True, "max_batch": 8, **options})


def written(made: dp.LLM, prompt: list[int], salt: str, **params: Any) -> Any:
    wanted = dp.SamplingParams(**{"max_tokens": 30, "ignore_eos": True, **params})
    asked = made.intake.requests(prompt, wanted, "coupled", salt)
    for one in asked:
        made.engine.add(one)
    run(made, asked)
    made.engine.check()
    return asked


@pytest.mark.parametrize("n", [1, 3])
def test_prefixes(n: int) -> None:
    with llm(speculate=None) as made:
        prompt = some(1, 60)
        first = written(made, prompt, "a", n=n, temperature=1.0, seed=1)
        assert first[0].stats.cached == 0
        other = written(made, prompt, "b", n=n, temperature=1.0, seed=1)
        assert other[0].stats.cached == 0
        again = written(made, prompt, "a", n=n, temperature=1.0, seed=1)
        assert again[0].stats.cached == len(prompt) - 1
        assert [r.output for r in first] == [r.output for r in other] == [r.output for r in again]


def test_prefixes_of_a_draft_model() -> None:
    draft = dp.DraftModel(tiny.relative(tiny.model("llama", dtype=torch.float64)), 3)
    with llm(speculate=draft) as made:
        prompt = some(1, 60)
        for salt in ("a", "b", "a"):
            written(made, prompt, salt)
        held = draft.beside.runner._rows._parked.values()
        assert {row.salt for row in held} == {"a", "b"}


def test_look_ups_are_begun_anew_where_memory_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken would refuse every look-up of its salt from then on."""

    def none(earlier: Earlier, output: object, most: int) -> None:
        raise MemoryError

    made = dp.SuffixAutomaton(8)
    with llm(speculate=made, prefix_cache=False) as served:
        written(served, some(4, 12), "a")
        with monkeypatch.context() as short:
            short.setattr(Earlier, "add", none)
            (request,) = written(served, some(4, 12), "a")
        assert not request.warnings and "a" not in made._earlier
        written(served, some(4, 12), "a")
        assert made._earlier["a"].size > 0


@pytest.mark.parametrize("shared", [False, True])
def test_look_ups(shared: bool) -> None:
    """A second request of the same text is drafted for from the first, of its own salt alone."""
    made = dp.SuffixAutomaton(8)
    with llm(speculate=made, prefix_cache=False) as served:
        prompt = some(4, 12)
        (first,) = written(served, prompt, "a", temperature=1.0, seed=5)
        (second,) = written(served, prompt, "a" if shared else "b", temperature=1.0, seed=5)
    assert second.output == first.output
    if shared:
        assert second.stats.accepted > first.stats.accepted + 10
    else:
        assert second.stats.by_step == first.stats.by_step


def test_salts_are_forgotten_least_lately_used_first() -> None:
    made = dp.SuffixAutomaton(8, corpus=200)
    with llm(speculate=made) as served:
        for number in range(12):
            written(served, some(4, 12), f"salt {number}", temperature=1.0, seed=5)
            assert sum(each.size for each in made._earlier.values()) <= 200
    with llm(speculate=(many := dp.SuffixAutomaton(8))) as served:
        for number in range(70):
            written(served, some(4, 12), f"salt {number}", max_tokens=3)
        assert len(many._earlier) == 64 and "salt 69" in many._earlier
