"""How a draft begins: layers of the target, or another width."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import tiny
import zoo
from draftproof.training.recipes.student import layers_and_width, spread, student


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
@torch.no_grad()
def test_all_layers_are_the_target(name: str) -> None:
    target = tiny.model(name)
    made = student(target, range(4))
    ids = torch.arange(3, 23)[None]
    assert torch.equal(made.eval()(ids).logits, target(ids).logits)
    assert made.generation_config.eos_token_id == 2


@pytest.mark.parametrize(("name", "layers"), [("llama", [0, 2, 3]), ("gemma3", [1, 2])])
@torch.no_grad()
def test_a_copy_is_the_target_without_the_other_layers(name: str, layers: list[int]) -> None:
    target = tiny.model(name)
    cut = copy.deepcopy(target)
    cut.model.layers = nn.ModuleList([cut.model.layers[i] for i in layers])
    cut.config.num_hidden_layers = len(layers)
    if name == "gemma3":
        cut.config.layer_types = [tiny.KINDS[i % 2] for i in layers]
    made, ids = student(target, layers).eval(), torch.arange(3, 23)[None]
    assert torch.equal(made(ids).logits, cut(ids, use_cache=False).logits)
    assert made.config.num_hidden_layers == len(layers)
    own = {p.data_ptr() for p in target.parameters()}
    assert not own & {p.data_ptr() for p in made.parameters()}


def test_a_copy_of_half_precision_learns_in_single() -> None:
    target = tiny.model(dtype=torch.bfloat16)
    made = student(target, [0, 3])
    assert made.dtype == torch.float32
    assert torch.equal(made.lm_head.weight, target.lm_head.weight.float())


def test_a_layer_that_would_work_otherwise_is_refused() -> None:
    target = tiny.model()
    target.model.layers[2].self_attn.scaling = 0.5
    assert student(target, [0, 1]) is not None
    with pytest.raises(ValueError, match="layer 2 of LlamaForCausalLM would differ in scaling"):
        student(target, [0, 2])
    target = tiny.model()
    target.model.layers[3].extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="do not fit into a smaller one"):
        student(target, [0, 3])


def test_another_width_is_random_and_a_function_of_the_seed() -> None:
    target, before = tiny.model(), torch.get_rng_state()
    one, two, other = (student(target, [0, 3], 24, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    config = one.config
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (24, 2, 12)
    assert (config.num_attention_heads, config.num_key_value_heads) == (2, 1)
    assert one.lm_head.weight.shape == (tiny.VOCABULARY, 24)
    assert one(torch.arange(9)[None]).logits.shape == (1, 9, tiny.VOCABULARY)


class Stubborn(LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        if config.hidden_size < 48:
            raise RuntimeError("too narrow\nfor me")
        super().__init__(config)


def test_a_class_that_takes_no_such_shape() -> None:
    target = Stubborn(tiny.CONFIGS["llama"]())
    with pytest.raises(ValueError, match="Stubborn cannot be made with 1 layers of width 24") as it:
        student(target, [0], 24)
    assert "\n" not in str(it.value)


@pytest.mark.parametrize("name", ["gpt_neo", "smollm3"])
@torch.no_grad()
def test_what_is_told_of_every_layer_is_told_of_those_chosen(name: str, tmp_path: Path) -> None:
    made, ids = student(zoo.model(name), [1, 3]).eval(), torch.arange(3, 33)[None]
    made.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(ids).logits, made(ids).logits)


@pytest.mark.parametrize("width", [None, 24])
def test_a_configuration_that_cannot_be_cut(width: int | None) -> None:
    with pytest.raises(ValueError, match="Gemma4ForCausalLM cannot be made with 2 layers"):
        student(zoo.model("gemma4_text"), [0, 2], width)


def test_sizes() -> None:
    assert [spread(n, 12) for n in (1, 2, 3, 12)] == [[0], [0, 11], [0, 5, 11], list(range(12))]
    assert layers_and_width("2", None, 12) == ([0, 11], None)
    assert layers_and_width("2x192", None, 12) == ([0, 11], 192)
    assert layers_and_width(None, "0,5,11", 12) == ([0, 5, 11], None)


@pytest.mark.parametrize(
    ("size", "layers", "said"),
    [
        ("13", None, "1 to the target's 12 layers"),
        ("0", None, "1 to the target's 12 layers"),
        ("2x0", None, "and a width"),
        ("2x", None, "is no size"),
        ("big", None, "is no size"),
        ("-1", None, "is no size"),
        (None, "0,12", "different ones of 0 to 11"),
        (None, "5,0", "in their order"),
        (None, "5,5", "different ones"),
        (None, "first", "are no numbers"),
    ],
)
def test_wrong_sizes(size: str | None, layers: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layers_and_width(size, layers, 12)
