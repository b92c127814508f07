"""Encoder-decoders with random weights, in float64: a target and a smaller draft of each family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedModel

import draftproof as dp

V = 61
T5: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "initializer_factor": 3.0,
    "decoder_start_token_id": 0,
}
LIKE_BART: dict[str, Any] = {  # all that have its layers
    "vocab_size": V,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
    "init_std": 0.6,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "tie_word_embeddings": False,  # else a random model repeats what it read
}
BART: dict[str, Any] = {
    **LIKE_BART,
    "max_position_embeddings": 96,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def _t5(name: str, layers: int, **more: Any) -> PreTrainedModel:
    options = {**T5, "num_layers": layers, "num_decoder_layers": layers, **more}
    return _of(name, options)


def _bart(name: str, layers: int, **more: Any) -> PreTrainedModel:
    return _of(name, {**BART, "encoder_layers": layers, "decoder_layers": layers, **more})


def _t5gemma(layers: int, **more: Any) -> PreTrainedModel:
    """Scores and logits that are capped, a window, and an encoder of another width."""
    one: dict[str, Any] = {
        "vocab_size": V,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "initializer_range": 0.6,
        "max_position_embeddings": 96,
        "sliding_window": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 7.0,
        "tie_word_embeddings": False,
        **more,
    }
    both = {"encoder": {**one, "hidden_size": 48}, "decoder": one, "vocab_size": V}
    made = _of("T5Gemma", {**both, "initializer_range": 0.6, "tie_word_embeddings": False})
    made.generation_config.decoder_start_token_id = 2
    return made


def _of(name: str, options: dict[str, Any]) -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(**options)
    kind = "MTModel" if name == "Marian" else "ForConditionalGeneration"
    made: PreTrainedModel = getattr(transformers, name + kind)(config)
    return made


# Of every expert's rows all but two are turned away in one pass of the model's own.
SWITCH: dict[str, Any] = {"num_experts": 3, "expert_capacity": 2, "tie_word_embeddings": False}
SWITCH |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
NLLB_MOE: dict[str, Any] = {"num_experts": 3, "encoder_sparse_step": 1, "decoder_sparse_step": 2}

FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "T5": partial(_t5, "T5"),
    "Flan-T5": partial(_t5, "T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "MT5": partial(_t5, "MT5"),
    "UMT5": partial(_t5, "UMT5"),
    "LongT5": partial(_t5, "LongT5"),
    "BART": partial(_bart, "Bart"),
    "mBART": partial(_bart, "MBart"),
    "Pegasus": partial(_bart, "Pegasus"),
    "Marian": partial(_bart, "Marian"),
    "M2M100": partial(_bart, "M2M100"),
    "PLBart": partial(_bart, "PLBart", scale_embedding=False),
    "Blenderbot": partial(_bart, "Blenderbot"),
    "BlenderbotSmall": partial(_bart, "BlenderbotSmall"),
    "PegasusX": partial(_bart, "PegasusX"),
    "T5Gemma": _t5gemma,
    "Switch": partial(_t5, "SwitchTransformers", **SWITCH),
    "NLLB-MoE": partial(_bart, "NllbMoe", **NLLB_MOE),
}
REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "NLLB-MoE of few rows": (
        lambda: _bart("NllbMoe", 2, **{**NLLB_MOE, "moe_eval_capacity_token_fraction": 0.5}),
        "take 0.5 of the rows of a pass",
    ),
    "NLLB-MoE at random": (
        lambda: _bart("NllbMoe", 2, **{**NLLB_MOE, "second_expert_policy": "sampling"}),
        "drawn at random",
    ),
    "LED": (lambda: _bart("LED", 2), "attention interface"),
    "BigBird": (lambda: _bart("BigBirdPegasus", 2), "random parts"),
}


@cache
def model(family: str, layers: int = 2, seed: int = 0) -> PreTrainedModel:
    """Of FAMILIES; nobody changes it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = FAMILIES[family](layers).double().eval()
        if (bias := getattr(made, "final_logits_bias", None)) is not None:
            bias.normal_()  # zeros would hide that it is left out
        # Positions that are learnt have the spread of everything else; those of a table have 1.
    return made


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Of 3 to 14 tokens, some of one length, none of them padding or an end."""
    rng = Random(seed)
    sizes = [rng.choice([3, 6, 6, 9, 14]) for _ in range(count)]
    return [[rng.randrange(3, V) for _ in range(size)] for size in sizes]


def own(made: PreTrainedModel, prompt: list[int], new: int, **options: Any) -> list[int]:
    """What transformers writes, greedily: the tokens behind those that the decoder starts from."""
    given = torch.tensor([prompt])
    # A mask of its own: transformers would take token ids that are padding's for padding.
    options = {"attention_mask": torch.ones_like(given), "num_beams": 1, **options}
    out: Any = made.generate(given, max_new_tokens=new, do_sample=False, **options)
    start = options.get("decoder_input_ids")
    begin = 1 if start is None else start.shape[1] + int(start[0, 0] != out[0, 0])
    return list(map(int, out[0, begin:]))


def methods(model: Callable[..., PreTrainedModel]) -> dict[str, Callable[[str], Any]]:
    """Of a family, whose `model` has a number of layers and a seed besides."""
    return {
        "ngram": lambda family: dp.NGram(min_ngram=1),
        "suffix": lambda family: dp.SuffixAutomaton(min_match=1),
        "draft": lambda family: dp.DraftModel(model(family, 1, 1)),
        "itself": lambda family: dp.DraftModel(model(family)),
        "lookahead": lambda family: dp.Lookahead(window=3, ngram=3, guesses=2),
        "specinfer": lambda family: dp.SpecInfer([model(family)], expansion=(2, 1)),
        "staged": lambda family: dp.Staged(model(family), dp.NGram(min_ngram=1)),
        "early-exit": lambda family: dp.EarlyExit(1, 3, min_confidence=0.0),
        "auto": lambda family: dp.Auto("ngram", dp.DraftModel(model(family))),
    }


def decoder_alone() -> LlamaForCausalLM:
    """A random decoder of the same vocabulary, in float32."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=V,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
            )
        )
