"""Any number of threads, any number of LLMs over one model: what one does, no other notices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.scheduler import Scheduler
from fakes import Table, V, Wild, request
from sharing import PARAMS, Slow, alone, together


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_four_threads_share_steps(batch: int) -> None:
    runner = Slow()
    engine = Engine(runner, Wild(1, Table()), scheduler=Scheduler(batch), vocabulary=V)

    def write(thread: int) -> None:
        for number in range(8):
            seed = 100 * thread + number
            made = [request(2 * seed + i, [1 + seed % 7, 2], seed=seed) for i in range(2)]
            seen = [each.key for each in engine.run(made)]
            assert set(seen) <= {each.key for each in made}
            for each in made:
                assert (each.output, each.finish_reason) == (alone(each.key, seed), "length")

    together(4, write)
    engine.check()
    assert runner.committed == {} and max(map(len, runner.passes)) == min(batch, 8)


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_an_llm_in_four_threads(runner: str, tmp_path: Any) -> None:
    dtype = torch.bfloat16 if runner == "native" else torch.float32
    if runner == "native" and not dp.models.native_runs():
        pytest.skip("the native kernels are not built")
    shape = {"head_dim": 16, "dtype": dtype}
    model, draft = tiny.model(**shape), tiny.model(seed=1, **shape)
    prompts = [[3 + i, 5, 7 * i + 1] for i in range(6)]
    with dp.LLM(model, runner=runner, speculate=None) as llm:
        wanted = [each.token_ids for each in llm.generate(prompts, PARAMS)]
        assert all(len(tokens) == 12 for tokens in wanted)
    before = model.config._attn_implementation
    with dp.LLM(model, runner=runner, speculate=dp.DraftModel(draft), max_batch=4) as llm:

        def write(thread: int) -> None:
            for number in range(4):
                at = (thread + number) % len(prompts)
                if number % 2:
                    chunks = [chunk.token_ids for chunk in llm.stream(prompts[at], PARAMS)]
                    assert sum(chunks, []) == wanted[at]
                else:
                    found = llm.generate([prompts[at], prompts[0]], PARAMS)
                    assert [each.token_ids for each in found] == [wanted[at], wanted[0]]

        together(4, write)
        llm.engine.check()
    assert model.config._attn_implementation == before


def test_two_llms_over_one_model_in_two_threads() -> None:
    model, prompts = tiny.model(), [[3 + i, 5, 7 * i + 1] for i in range(4)]
    with dp.LLM(model, speculate=None) as llm:
        wanted = [each.token_ids for each in llm.generate(prompts, PARAMS)]
    before = model.config._attn_implementation
    many = [
        dp.LLM(model, speculate=None),
        dp.LLM(model, speculate=dp.EarlyExit(1, min_confidence=0.0)),
    ]

    def write(thread: int) -> None:
        for _ in range(4):
            found = many[thread % 2].generate(prompts, PARAMS)
            assert [each.token_ids for each in found] == wanted

    together(4, write)
    assert model.config._attn_implementation == before and not model.training
    assert model.config.num_hidden_layers == 4


def test_keys_are_given_once() -> None:
    llm = dp.LLM(tiny.model(), speculate=None)
    made = together(8, lambda thread: [llm.prepare([1], PARAMS)[0].key for _ in range(200)])
    assert len({key for keys in made for key in keys}) == 1600


def test_a_request_is_run_by_the_llm_that_it_was_given_to() -> None:
    one = dp.LLM(tiny.model(), speculate=None)
    other = dp.LLM(one, speculate=None)
    given = one.submit([5, 6], dp.SamplingParams(max_tokens=3))
    with pytest.raises(ValueError, match="or by another LLM"):
        next(other.engine.run(given))
    assert [each.finished for each in one.engine.run(given)][-1]
    keys = [each.key for each in (*one.submit([5]), *other.submit([5]))]
    assert len({*keys}) == 2, "two LLMs over one model"
