"""The torch runner: models that it cannot run right are refused by name, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama import LlamaConfig

import draftproof as dp
import tiny
from forwarding import V, build, own, target


def refused(model: Any, *words: str, **options: Any) -> None:
    with pytest.raises(ValueError) as caught:
        dp.LLM(model, **options)
    message = str(caught.value)
    for word in words:
        assert word.lower() in message.lower(), message
    assert "\n" not in message and len(message) < 500


def test_recurrent_models_are_refused(tmp_path: Any) -> None:
    from transformers.models.mamba import MambaConfig

    made = build(MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1), torch.float32)
    refused(made, "Mamba")
    made.save_pretrained(tmp_path)
    refused(tmp_path, "Mamba")
    refused(target("llama", torch.float32), "Mamba", speculate=dp.DraftModel(made))


def test_models_without_the_attention_interface_are_refused() -> None:
    from transformers.models.bloom import BloomConfig

    made = build(BloomConfig(vocab_size=V, hidden_size=16, n_layer=1, n_head=2), torch.float32)
    refused(made, "Bloom")


def test_chunked_attention_is_refused() -> None:
    from transformers.models.llama4 import Llama4TextConfig

    config = Llama4TextConfig(
        **{**tiny.COMMON, "pad_token_id": 0},
        intermediate_size_mlp=96,
        num_local_experts=2,
        attention_chunk_size=8,
    )
    refused(build(config, torch.float32), "Llama4")


def test_windows_that_live_only_in_the_mask_are_refused() -> None:
    from transformers.models.phimoe import PhimoeConfig

    config = PhimoeConfig(
        **{k: v for k, v in tiny.COMMON.items() if k != "head_dim"},
        sliding_window=6,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    refused(build(config, torch.float32), "Phimoe")


def test_convolutions_are_refused() -> None:
    from transformers.models.lfm2 import Lfm2Config

    config = Lfm2Config(**tiny.COMMON, layer_types=["conv", "full_attention"] * 2)
    refused(build(config, torch.float32), "Lfm2")


@pytest.mark.filterwarnings("default")
def test_bidirectional_models_are_refused() -> None:
    from transformers.models.bert import BertConfig, BertLMHeadModel

    config = BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.3,
    )
    refused(BertLMHeadModel(config).eval(), "Bert")


def test_a_model_without_a_head_is_refused() -> None:
    refused(target("llama").model, "LlamaModel")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_types_that_look_at_the_longest_position_bound_max_length(kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {
            "long_factor": [2.0] * 6,
            "short_factor": [1.0] * 6,
            "original_max_position_embeddings": 64,
        }
    positions = 128 if kind == "longrope" else 64
    config = LlamaConfig(
        **{**tiny.COMMON, "max_position_embeddings": positions}, rope_parameters=rope
    )
    model = build(config)
    with dp.LLM(model, max_batch=2, speculate=None) as llm:
        assert llm.max_length <= 64
        prompt = [3 + i % 90 for i in range(50)]
        params = dp.SamplingParams(max_tokens=40, ignore_eos=True)
        outs = llm.generate([prompt, [5, 6]], params)
    assert len(outs[0].token_ids) == llm.max_length - 50
    for out in outs:
        tokens = [*out.prompt_token_ids, *out.token_ids]
        for i in range(len(out.prompt_token_ids), min(len(tokens), 64), 7):
            assert own(model, tokens[:i]).argmax().item() == tokens[i]
    refused(model, "max_length", max_length=100)
