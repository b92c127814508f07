"""A model's own defaults: its generation config as sampling parameters.

Knows the names of transformers' generation config, not how anything is sampled.
"""

from __future__ import annotations

from typing import Any

# Ours -> transformers'. End-of-text tokens are not here: every request of the model ends with them.
SAME = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "bad_token_ids": "suppress_tokens",
    "stop": "stop_strings",
}
ONLY_SAMPLED = ("temperature", "top_k", "top_p", "min_p")  # transformers' too
# What changes an output there and has no equal here, with the value that changes nothing.
OTHERS: dict[str, Any] = {
    "typical_p": 1.0,
    "top_h": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "max_time": None,
    "min_length": 0,
}
# What an encoder-decoder's texts follow by themselves (`generation.RULES`).
OF_ENCODERS = (
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
)


def options_of(config: Any, encodes: bool = False) -> dict[str, Any]:
    """`SamplingParams` of a generation config; greedy unless it says `do_sample`.

    encodes: of an encoder-decoder, whose texts follow some of it by themselves.
    """
    sampled = bool(getattr(config, "do_sample", False))
    options = {}
    for ours, theirs in SAME.items():
        value = getattr(config, theirs, None)
        if encodes and theirs in OF_ENCODERS:
            continue
        if value is not None and (sampled or ours not in ONLY_SAMPLED):
            options[ours] = value
    if sampled:
        options.setdefault("temperature", 1.0)
    return options


def ignored_of(config: Any, encodes: bool = False) -> dict[str, Any]:
    """What of a generation config is not followed: its name there, and its value."""
    names = {n: idle for n, idle in OTHERS.items() if not (encodes and n in OF_ENCODERS)}
    if not getattr(config, "do_sample", False):
        names |= {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
    values = {name: getattr(config, name, None) for name in names}
    return {n: value for n, value in values.items() if value is not None and value != names[n]}
