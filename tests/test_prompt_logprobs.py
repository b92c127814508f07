"""Log-probabilities of a prompt's tokens are those of a teacher-forced pass over it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from beside import some

V = tiny.VOCABULARY
MODEL: dict[str, Any] = {"dtype": torch.float64, "max_position_embeddings": 600}


def forced(model: Any, ids: list[int]) -> torch.Tensor:
    """(N, V): the model's own pass over all of them."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize("speculate", [None, "ngram", "auto"])
@pytest.mark.parametrize("length", [1, 2, 40, 129, 500])
def test_against_a_teacher_forced_pass(speculate: Any, length: int) -> None:
    model, ids = tiny.model("llama", **MODEL), some(3, length)
    params = dp.SamplingParams(max_tokens=5, prompt_logprobs=2, logprobs=1, n=2, temperature=1.0)
    with dp.LLM(model, speculate=speculate, prefix_cache=True, max_batch=3) as llm:
        llm.generate(
            [ids], dp.SamplingParams(max_tokens=3)
        )  # a row to take over, which must not be
        first, second = llm.generate([ids], params)
        llm.engine.check()
    assert second.prompt_logprobs is None  # of a prompt there is one reading
    assert first.prompt_logprobs is not None and len(first.prompt_logprobs) == length
    assert first.prompt_logprobs[0] is None
    law = forced(model, ids)
    for at, found in enumerate(first.prompt_logprobs[1:]):
        assert found is not None and ids[at + 1] in found
        best = law[at].topk(2).indices.tolist()
        assert list(found)[:2] == best and len(found) <= 3
        for token, value in found.items():
            assert value == pytest.approx(law[at, token].item(), abs=1e-9)


def test_it_changes_no_text_beside_others() -> None:
    model, prompts = tiny.model("llama", **MODEL), [some(seed, 150) for seed in range(4)]
    sampled = dp.SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    scored = dp.SamplingParams(temperature=0.8, seed=3, max_tokens=20, prompt_logprobs=0)
    with dp.LLM(model, speculate="suffix", max_batch=3) as llm:
        alone = llm.generate(prompts, sampled)
        mixed = llm.generate(prompts, [sampled, scored, scored, sampled])
    assert [one.token_ids for one in mixed] == [one.token_ids for one in alone]
    assert [one.prompt_logprobs is None for one in mixed] == [True, False, False, True]


def test_a_row_that_is_not_finite_ends_its_own_text() -> None:
    model = tiny.model("llama", **MODEL)
    with torch.no_grad():
        model.get_input_embeddings().weight[50] = torch.inf
    params = dp.SamplingParams(max_tokens=4, prompt_logprobs=0)
    with dp.LLM(model, speculate=None, max_batch=2) as llm:
        bad, good = llm.generate([[3, 50, 4, 5], [3, 4, 5]], params)
        llm.engine.check()
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")
    assert good.prompt_logprobs is not None and len(good.prompt_logprobs) == 3


def test_nothing_is_scored_without_a_step() -> None:
    with pytest.raises(ValueError, match="max_tokens must be 1 or more"):
        dp.SamplingParams(prompt_logprobs=1, max_tokens=0)
