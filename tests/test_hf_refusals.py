"""`generate(custom_generate=...)`: what it refuses by name, and what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

import draftproof as dp
from generating import WIDTH, Oracle, method, model, ours, same, theirs, whole

REFUSED: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2, "guidance_scale": 2.0}
REFUSED |= {"penalty_alpha": 0.6, "dola_layers": "low", "assistant_early_exit": 2}
REFUSED |= {"prompt_lookup_num_tokens": 3, "use_cache": False, "cache_implementation": "static"}
REFUSED |= {"use_mtp": True, "prefill_chunk_size": 4, "low_memory": True}
REFUSED |= {"compile_config": transformers.CompileConfig()}
REFUSED |= {"output_attentions": True, "past_key_values": transformers.DynamicCache()}
REFUSED |= {"output_hidden_states": True, "position_ids": torch.arange(3, WIDTH + 3)[None]}
OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "assistant_model": lambda: {"assistant_model": model()},
    "inputs_embeds": lambda: {"input_ids": None, "inputs_embeds": torch.zeros(1, WIDTH, 48)},
    "padd": lambda: {"attention_mask": torch.tensor([[1] * (WIDTH - 2) + [0] * 2])},
    "attention_mask": lambda: {"attention_mask": torch.tensor([[1, 1, 0] + [1] * (WIDTH - 3)])},
    "streamer": lambda: {"streamer": Mock(), "batch": 3},
    "token_type_ids": lambda: {"target": model("gpt2"), "token_type_ids": torch.ones(1, WIDTH)},
}


@pytest.mark.parametrize("word", [*REFUSED, *OTHERS])
def test_what_cannot_be_honoured_is_refused_by_name(word: str) -> None:
    options = {"target": model(), "speculate": "ngram", "return_dict_in_generate": True, "top_k": 4}
    options |= {word: REFUSED[word]} if word in REFUSED else OTHERS[word]()
    with pytest.raises(ValueError, match=word):
        ours(**options)


def test_criteria_without_an_end_need_one_row_at_a_time() -> None:
    class Never(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return torch.zeros(len(input_ids), dtype=torch.bool)

    options = {"eos_token_id": None, "stopping_criteria": [Never()]}
    same(ours(model(), "ngram", 1, **options), theirs(model(), 1, **options))
    with pytest.raises(ValueError, match="without an end-of-text token transformers writes on in"):
        ours(model(), "ngram", 3, **options)


def test_the_end_of_the_context_is_told() -> None:
    with pytest.warns(UserWarning, match="ends at the model's longest context, 128 tokens, before"):
        written = ours(model(), "ngram", max_new_tokens=500, eos_token_id=None)
    assert written.shape == (1, 128)


def test_an_engine_that_is_closed_meanwhile_is_told() -> None:
    made: Any = dp.custom_generate("ngram")
    streamer = Mock(put=lambda _: made._llm and made._llm.close())
    with pytest.raises(RuntimeError, match="aborted: its engine was closed meanwhile"):
        theirs(model(), custom_generate=made, streamer=streamer)


def test_bad_options_are_refused() -> None:
    for speculate in ("eagle", 5.5, ["ngram", "eagle"]):
        with pytest.raises(ValueError, match="eagle|float"):
            dp.custom_generate(speculate)  # before any call
    for name, value in (("rule", "greedy"), ("max_batch", 0)):
        with pytest.raises(ValueError, match=name):
            theirs(model(), custom_generate=dp.custom_generate(**{name: value}))


def test_one_object_serves_several_models() -> None:
    made = dp.custom_generate(dp.NGram(), seed=1, max_batch=2)
    for name, batch in (("llama", 1), ("qwen3", 3), ("gpt2", 1), ("gpt2", 3), ("llama", 3)):
        same(theirs(model(name), batch, custom_generate=made), whole(batch, name))


def test_a_converted_or_trained_model_is_followed() -> None:
    target = copy.deepcopy(model())
    made = dp.custom_generate(method("draft"))
    for dtype in (torch.float32, torch.float64, torch.float32):
        target.to(dtype)
        same(theirs(target, 3, custom_generate=made), theirs(target, 3))
    for parameter in target.parameters():
        parameter.data += 0.1 * parameter.data.flip(-1)
    want = theirs(target, 3)
    assert want.tolist() != whole(3).tolist()
    same(theirs(target, 3, custom_generate=made), want)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_and_the_generator_are_left_alone(training: bool) -> None:
    target = copy.deepcopy(model()).train(training)

    def looks() -> Any:
        parts = [(name, part.training, list(vars(part))) for name, part in target.named_modules()]
        config = target.config
        return parts, config._attn_implementation, str(config), str(target.generation_config)

    torch.manual_seed(9)
    before, state = looks(), torch.get_rng_state()
    same(ours(target, method("both"), 3), whole(3))
    assert looks() == before and torch.equal(torch.get_rng_state(), state)


def test_a_failing_draft_is_told_and_changes_nothing() -> None:
    failing = Oracle(whole(3))
    failing.calls_left = 2
    with pytest.warns(Warning, match="no idea"):
        same(ours(model(), failing, 3), whole(3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": 0.5}, "seed is 0.5, but must be an integer"),
        ({"max_batch": "2"}, "max_batch is '2', but must be an integer"),
        ({"max_batch": 0}, "max_batch is 0: give 1 or more"),
        ({"rule": "exact"}, "rule 'exact' is unknown"),
    ],
)
def test_what_is_wrong_is_told_when_it_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dp.custom_generate(**given)
