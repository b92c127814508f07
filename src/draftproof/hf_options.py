"""Which options of transformers' `generate` the drop-in takes; the others are refused by name.

Knows `generate`'s conventions, not how anything is written.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from transformers import GenerationConfig

# Keywords that reach every decoding loop; cache_position does in older versions.
TAKEN = (
    "attention_mask position_ids past_key_values use_cache logits_to_keep tokenizer cache_position"
)
# And those that only an encoder-decoder's loop gets.
TAKEN_BESIDE = "encoder_outputs decoder_attention_mask"
# Options of a generation config that only another decoding loop could follow.
OTHER_LOOPS = (
    "num_beams num_beam_groups penalty_alpha dola_layers constraints force_words_ids use_mtp "
    "prompt_lookup_num_tokens assistant_early_exit guidance_scale cache_implementation "
    "prefill_chunk_size compile_config is_assistant low_memory output_attentions "
    "output_hidden_states"
)
# What `generate` hands to a decoding loop, and not to what makes one.
OF_GENERATE = dict.fromkeys(
    ("logits_processor", "stopping_criteria", "generation_config"),
    "generate hands it to what this makes: fast = dp.custom_generate(), then custom_generate=fast",
)
INSTEAD = {
    "assistant_model": "use speculate=dp.DraftModel(...)",
    "prompt_lookup_num_tokens": "use speculate=dp.NGram()",
}
# Processors whose state follows one sequence of calls, where a tree asks in another order.
STATEFUL = "UnbatchedClassifierFreeGuidanceLogitsProcessor SynthIDTextWatermarkLogitsProcessor "
STATEFUL += "WhisperNoSpeechDetection"


def of_generate(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the calling `generate` that it keeps from a callable (seen in 5.23).

    Without them a streamer would stay silent and an assistant model be ignored.
    """
    names = ("streamer", "assistant_model", "synced_gpus")
    found = {name: arguments.get(name) for name in names}
    found["past_key_values"] = (arguments.get("kwargs") or {}).get("past_key_values")
    return {n: value for n, value in found.items() if value is not None and value is not False}


def signature_with_tokenizer(call: Callable[..., Any]) -> inspect.Signature:
    """The signature of a decoding loop for `generate`, with `tokenizer` where a caller gave one.

    transformers takes the tokenizer out of the keywords, forgets it for a callable (seen in 5.23),
    and then refuses stop strings, which need it: so it is put back among the keywords, which are
    searched for this signature's names next.
    """
    signature = inspect.signature(call)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_extract_generation_mode_kwargs":
        frame = frame.f_back
    here = {} if frame is None else frame.f_locals
    if "tokenizer" not in here.get("generation_mode_kwargs", {}) or "kwargs" not in here:
        return signature
    here["kwargs"]["tokenizer"] = here["generation_mode_kwargs"]["tokenizer"]
    keyword = inspect.Parameter("tokenizer", inspect.Parameter.KEYWORD_ONLY)
    *named, rest = signature.parameters.values()
    return signature.replace(parameters=[*named, keyword, rest])


def refuse(
    config: GenerationConfig,
    processors: Sequence[Any],
    given: dict[str, Any],
    handed: dict[str, Any],
    encodes: bool,
) -> None:
    """Refuse by name what would otherwise be ignored. encodes: the model has an encoder."""
    taken = f"{TAKEN} {TAKEN_BESIDE if encodes else ''}".split()
    if config.use_cache is False:
        raise ValueError(
            "the config's use_cache=False is not taken by draftproof, which keeps keys and values "
            "of its own: pass use_cache=True"
        )
    asked = [name for name in OTHER_LOOPS.split() if _is_on(getattr(config, name, None))]
    asked += [n for n, value in given.items() if n not in taken and _is_on(value)]
    asked += [name for name in handed if name != "streamer"]
    asked += [name for p in processors if (name := type(p).__name__) in STATEFUL.split()]
    if asked:
        way = INSTEAD.get(asked[0], "drop it, or use generate without custom_generate")
        raise ValueError(f"generate's {asked[0]} is not taken by draftproof: {way}")


def _is_on(option: Any) -> bool:
    """Whether an option asks for something; 0 and 1 are the neutral numbers."""
    neutral = isinstance(option, bool | int | float) and option in (0, 1) and option is not True
    return option is not None and not neutral
