"""Encoder-decoders: found among models, loaded, refused in one sentence.

What no configuration tells is found out by `encoder_probe`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from draftproof.gguf.reader import located
from draftproof.runners import loading
from draftproof.runners.crossing import Roles
from draftproof.runners.loading import Refused

INSTEAD = "use a T5, BART, mBART, Pegasus, Marian or M2M100 model, or a causal language model"
WITHOUT_LIMIT = 1 << 20


def is_one(model: Any, **options: Any) -> bool:
    """Whether a model by name, folder or object is an encoder-decoder; False: nobody can tell."""
    if isinstance(model, torch.nn.Module):
        config: Any = getattr(loading.unwrap(model), "config", None)
    elif not isinstance(model, str | Path) or located(model) is not None:
        return False
    else:
        try:
            config = loading.described(str(model), **options)
        except ValueError:  # whoever loads it says why
            return False
    return bool(getattr(config, "is_encoder_decoder", False))


def check_kind(draft: Any, encodes: bool, **options: Any) -> None:
    """Raises `ValueError` unless a draft has an encoder where its target has one (`encodes`)."""
    if is_one(draft, **options) != encodes:
        kinds = "an encoder-decoder", "a decoder alone"
        own, other = kinds if encodes else kinds[::-1]
        raise ValueError(f"the target is {own} and the draft {other}: use a draft of its kind")


def load(
    model: Any, *, dtype: torch.dtype | None, device: torch.device, **options: Any
) -> PreTrainedModel:
    """In memory, by transformers; a loaded one is returned as it is."""
    if isinstance(model, torch.nn.Module):
        return model  # type: ignore[return-value]
    return loading.load(model, dtype=dtype, device=device, kind=AutoModelForSeq2SeqLM, **options)


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raises `Refused` for what cannot run packed, as far as its configuration tells."""
    loading.refuse_loaded(model, AutoModelForSeq2SeqLM)
    name, config = type(model).__name__, model.config
    if not model._can_set_attn_implementation():
        raise Refused(
            f"{name} does not use transformers' attention interface in its encoder and decoder: "
            f"{INSTEAD}"
        )
    reads = getattr(model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise Refused(f"{name} reads {reads}, and only token ids can be read yet: {INSTEAD}")
    if getattr(config, "expert_capacity", None) is not None:
        raise Refused(
            f"the experts of {name} take a bounded number of rows, so that requests in one pass "
            f"would change one another: {INSTEAD}"
        )
    if getattr(config, "attention_type", None) == "block_sparse":
        raise Refused(f"the encoder of {name} reads random parts of a long input: {INSTEAD}")
    try:
        Roles(model.get_decoder())
    except (ValueError, AttributeError) as error:
        raise Refused(
            f"{name} has no decoder whose self- and cross-attention are known by name: {INSTEAD}"
        ) from error


def input_vocabulary(model: PreTrainedModel) -> int:
    """Ids that the encoder has rows for."""
    embeddings: Any = model.get_encoder().get_input_embeddings()
    return int(embeddings.weight.shape[0])


def longest_input(config: Any) -> int:
    """Tokens that the encoder has positions for; very many where it counts distances alone."""
    return int(getattr(config, "max_position_embeddings", None) or WITHOUT_LIMIT)


def one_vocabulary(model: PreTrainedModel) -> bool:
    """Whether what the encoder reads are ids of what the decoder writes."""
    return bool(getattr(model.config, "share_encoder_decoder_embeddings", True))
