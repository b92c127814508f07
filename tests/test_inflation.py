"""Inflation: the logits and the text of the model, the cost of another."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

import draftproof as dp
import draftproof.bench
import tiny
from draftproof import bundled
from draftproof.bench import inflate
from draftproof.bench.inflation import SHAPES, cost_bytes, shape_like

LIKE: dict[str, Any] = {  # groups of two; twice the layers; narrower heads than the model's
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 1500,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a head of keys for each query": ("llama", {"num_key_value_heads": 4}),
    "grouped": ("llama", {}),
    "one head of keys": ("llama", {"num_key_value_heads": 1}),
    "groups of three": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "norms of queries and keys, windows": ("qwen3", {}),
    "biases of queries and keys only": ("qwen2", {}),
    "window": ("mistral", {}),
}


def made(case: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model of which no vector is trivial, as fresh norms and biases are."""
    name, changes = CASES[case]
    if name == "qwen2":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(Qwen2Config(**tiny.COMMON), dtype=dtype)
    else:
        model = tiny.model(name, dtype=dtype, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += torch.empty(weight.shape).normal_(0, 0.2, generator=generator).to(dtype)
    return model.eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.randint(3, tiny.VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits.float()


def off(a: PreTrainedModel, b: PreTrainedModel) -> float:
    """The largest difference of logits, of the largest logit."""
    own = logits(a)
    return float((own - logits(b)).abs().max() / own.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_logits_stay_and_cost_becomes_that_of_the_shape(case):
    model, like = made(case), LlamaConfig(**LIKE)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings, noise = model.config.to_dict(), torch.get_rng_state()
    big = inflate(model, like=like)
    assert torch.equal(torch.get_rng_state(), noise)
    assert model.config.to_dict() == settings
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert type(big) is type(model) and big.dtype == model.dtype and not big.training
    assert big.config.num_hidden_layers == 8 and len(big.model.layers) == 8
    assert big.config.num_attention_heads == 2 * big.config.num_key_value_heads
    assert big.config.hidden_size == 48 and big.config.vocab_size == tiny.VOCABULARY
    tied = big.get_output_embeddings().weight is big.get_input_embeddings().weight
    assert tied == bool(model.config.tie_word_embeddings)
    target = cost_bytes(like, torch.float32)
    assert cost_bytes(big.config, torch.float32) == pytest.approx(target, rel=0.02)
    assert cost_bytes(model.config, torch.float32) < target / 8
    assert off(model, big) < 1e-5
    assert torch.equal(logits(model).argmax(-1), logits(big).argmax(-1))


@pytest.mark.parametrize("case", ["grouped", "biases", "norms of queries and keys, windows"])
def test_half_precision_rounds_a_little_differently(case):
    model = made(case, torch.bfloat16)
    big = inflate(model, like=LlamaConfig(**LIKE))
    assert big.dtype == torch.bfloat16
    assert off(model, big) < 2**-6


@pytest.mark.parametrize("case", ["groups of three", "norms of queries and keys, windows"])
def test_the_text_stays(case):
    model = made(case)
    big = inflate(model, like=LlamaConfig(**LIKE))
    prompt = [5, 17, 40, 8]
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    texts = [
        each.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, 4:].tolist()
        for each in (model, big)
    ]
    assert texts[0] == texts[1]
    for temperature in (0.0, 1.0):
        params = dp.SamplingParams(max_tokens=24, temperature=temperature, seed=3)
        with (
            dp.LLM(model, speculate=None) as own,
            dp.LLM(big, speculate=dp.DraftModel(model, 4)) as drafted,
        ):
            (plain,), (fast,) = own.generate(prompt, params), drafted.generate(prompt, params)
        assert fast.token_ids == plain.token_ids
        assert temperature or plain.token_ids == texts[0]
        assert fast.stats.accepted == sum(fast.from_draft) > 0


def test_what_was_added_is_noise_that_is_read_and_zeros_that_keep_it_out():
    big = inflate(made("biases"), like=LlamaConfig(**LIKE))
    weights = big.state_dict()
    last = {name: weight for name, weight in weights.items() if ".layers.7." in name}
    for name, weight in last.items():
        if "o_proj" in name or "down_proj" in name:
            assert not weight.any()
        elif "norm" in name:
            assert bool((weight == 1).all())
        else:
            assert 0.01 < float(weight.std()) < 0.03
    width = weights["model.layers.0.mlp.down_proj.weight"]
    assert not width[:, 96:].any() and bool(width[:, :96].all())
    again = inflate(made("biases"), like=LlamaConfig(**LIKE)).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in weights.items())


@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
@pytest.mark.parametrize("layer", [0, 7])
def test_without_the_zeros_the_logits_would_change(layer, name):
    model = made("grouped")
    big = inflate(model, like=LlamaConfig(**LIKE))
    with torch.no_grad():  # a column of a head or unit that was added
        big.get_parameter(f"model.layers.{layer}.{name}.weight")[:, -1] = 0.5
    assert off(model, big) > 1e-4


def test_scaled_rotary_embeddings_stay():
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny.model("llama", rope_parameters=rope)
    big = inflate(model, like=LlamaConfig(**LIKE))
    assert off(model, big) < 1e-5
    assert big.model.rotary_emb is not model.model.rotary_emb


def test_its_own_shape_is_a_copy():
    model = made("norms of queries and keys, windows")
    big = inflate(model, like=model.config)
    assert torch.equal(logits(big), logits(model))
    assert big.config.layer_types == model.config.layer_types
    assert {n: w.shape for n, w in big.named_parameters()} == {
        n: w.shape for n, w in model.named_parameters()
    }


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75, 1.0, 2.0])
def test_shares(share):
    model, like = made("grouped"), LlamaConfig(**LIKE)
    target = share * cost_bytes(like, torch.float32)
    big = inflate(model, like=like, share=share)
    assert cost_bytes(big.config, torch.float32) == pytest.approx(target, rel=0.02)
    assert big.config.num_hidden_layers == max(4, round(8 * share))
    assert off(model, big) < 1e-5


def test_published_shapes_have_their_published_sizes():
    shapes = {name: AutoConfig.for_model(**shape) for name, shape in SHAPES.items()}
    assert {name: cost_bytes(shape, torch.bfloat16) // 2 for name, shape in shapes.items()} == {
        "Qwen3-0.6B": 596_049_920,
        "Qwen3-1.7B": 1_720_574_976,
        "Llama-3.2-1B": 1_235_814_400,
    }


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_the_bundled_target_can_be_given_published_shapes(name, share):
    config = AutoConfig.from_pretrained(bundled.folder("target"))
    big = shape_like(config, name, share)
    target = share * cost_bytes(AutoConfig.for_model(**SHAPES[name]), torch.bfloat16)
    assert cost_bytes(big) == pytest.approx(target, rel=0.02)  # in its own bfloat16
    type(big)(**big.to_dict())  # passes its own validation, so that it could be saved


@pytest.mark.parametrize("case", ["untied", "norms of queries and keys, windows"])
def test_an_inflated_model_can_be_saved(case, tmp_path):
    big = inflate(made(case), like=LlamaConfig(**LIKE))
    big.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(big))


def test_names_of_folders_and_of_the_package(tmp_path):
    assert draftproof.bench.inflate is inflate
    LlamaConfig(**LIKE).save_pretrained(tmp_path)
    model = made("grouped")
    assert shape_like(model.config, tmp_path).intermediate_size == (
        shape_like(model.config, LlamaConfig(**LIKE)).intermediate_size
    )
    with pytest.raises(AttributeError, match="no attribute 'deflate'"):
        draftproof.bench.deflate  # noqa: B018


def changed(model: PreTrainedModel) -> PreTrainedModel:
    """What an adapter does: another module around a layer's."""
    model = copy.deepcopy(model)
    attention = model.model.layers[0].self_attn
    attention.q_proj = torch.nn.Sequential(attention.q_proj)
    return model


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: inflate(tiny.model("gemma3")), "^Gemma3ForCausalLM is not a model"),
        (lambda: inflate(changed(made("grouped"))), "changed after loading"),
        (lambda: inflate(made("grouped"), "nowhere/nothing"), "no shape 'nowhere/nothing'"),
        (lambda: inflate(made("grouped"), GPT2Config()), "shape of gpt2 cannot"),
        (lambda: inflate(made("grouped"), LlamaConfig(**LIKE), 0.01), "name a larger shape"),
        (lambda: inflate(made("grouped"), LlamaConfig(**LIKE), 0), "share is 0"),
        (lambda: inflate(made("grouped"), LlamaConfig(**LIKE), math.nan), "share is nan"),
    ],
)
def test_refusals_are_one_sentence(wrong, why):
    with pytest.raises(ValueError, match=why) as refusal:
        wrong()
    text = str(refusal.value)
    assert "\n" not in text and not text.endswith(".")


def test_gpt2_is_refused():
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=9)
    with pytest.raises(ValueError, match="^GPT2LMHeadModel is not a model whose layers"):
        inflate(AutoModelForCausalLM.from_config(config))


def test_a_shape_of_another_kind_of_layer_types_is_extended_with_full_attention():
    config = Qwen3Config(**tiny.COMMON, layer_types=["sliding_attention"] * 4, sliding_window=6)
    kinds = shape_like(config, LlamaConfig(**LIKE)).layer_types
    assert kinds == ["sliding_attention"] * 4 + ["full_attention"] * 4
