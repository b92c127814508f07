"""Encoder-decoders: found among models, loaded, refused in one sentence.

What no configuration tells is found out by `encoder_probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from draftproof import configurations
from draftproof.gguf.reader import located
from draftproof.runners import loading
from draftproof.runners.altering import bounded
from draftproof.runners.base import EncoderInput
from draftproof.runners.crossing import Roles
from draftproof.runners.hearing import Ear
from draftproof.runners.loading import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INSTEAD = (
    "use a T5, BART, mBART, Pegasus, Marian, M2M100 or Whisper model, or a causal language model"
)
WITHOUT_LIMIT = 1 << 20


def is_one(model: Any, **options: Any) -> bool:
    """Whether a model by name, folder or object is an encoder-decoder; False: nobody can tell."""
    return bool(getattr(_config_of(model, **options), "is_encoder_decoder", False))


def _config_of(model: Any, **options: Any) -> Any:
    """None: nobody can tell."""
    if isinstance(model, torch.nn.Module):
        return getattr(loading.unwrap(model), "config", None)
    if not isinstance(model, str | Path) or located(model) is not None:
        return None
    try:
        return loading.described(str(model), **options)
    except ValueError:  # whoever loads it says why
        return None


def hears(model: str, **options: Any) -> bool:
    """Whether an encoder-decoder by name or folder reads audio."""
    return _of_speech(_config_of(model, **options))


def listens(model: Any, **options: Any) -> bool:
    """Whether it is a decoder that goes by what an encoder made, and has none itself."""
    config = _config_of(model, **options)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return False
    if isinstance(model, torch.nn.Module):
        kind: Any = type(loading.unwrap(model))
    elif type(config).__module__ == configurations.__name__:
        return False  # of none of these, and to look at their class would import it
    else:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return loading.listens(kind)


def _of_speech(config: Any) -> bool:
    return getattr(config, "model_type", None) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES


def check_ears(draft: Ear | None, target: Ear | None) -> None:
    """Raises `ValueError` unless a draft is given what it reads where its target is."""
    own, other = (None if ear is None else (ear.name, ear.shape) for ear in (draft, target))
    if own != other:
        kinds = ["token ids" if one is None else f"{one[0]} {one[1]}" for one in (own, other)]
        raise ValueError(
            f"what the draft reads is {kinds[0]}, and the target {kinds[1]}: use one of its kind"
        )


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
    speech = _of_speech(loading.described(str(model), **options))
    kind: Any = AutoModelForSpeechSeq2Seq if speech else AutoModelForSeq2SeqLM
    return loading.load(model, dtype=dtype, device=device, kind=kind, **options)


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raises `Refused` for what cannot run packed, as far as its configuration tells."""
    loading.refuse_loaded(model, AutoModelForSeq2SeqLM)
    name, config = type(model).__name__, model.config
    if not model._can_set_attn_implementation():
        raise Refused(
            f"{name} does not use transformers' attention interface in its encoder and decoder: "
            f"{INSTEAD}"
        )
    if reads_otherwise(model):
        try:
            Ear(model)
        except ValueError as error:
            raise Refused(f"{name} {error}: {INSTEAD}") from error
    if (reason := _experts(config)) is not None:
        raise Refused(f"the experts of {name} {reason}: {INSTEAD}")
    if getattr(config, "attention_type", None) == "block_sparse":
        raise Refused(f"the encoder of {name} reads random parts of a long input: {INSTEAD}")
    try:
        Roles(model.get_decoder())
    except (ValueError, AttributeError) as error:
        raise Refused(
            f"{name} has no decoder whose self- and cross-attention are known by name: {INSTEAD}"
        ) from error


def _experts(config: Any) -> str | None:
    """Why what an expert does with a row depends on more than its text; None: it does not.

    A bound on a decoder's rows is lifted in a pass; an encoder's is counted input by input.
    """
    policy = getattr(config, "second_expert_policy", "all")
    if policy != "all":
        return f"are drawn at random (second_expert_policy {policy!r})"
    share = getattr(config, "moe_eval_capacity_token_fraction", 1.0)
    if share < 1:
        return (
            f"take {share:g} of the rows of a pass (moe_eval_capacity_token_fraction), so that "
            "requests in one pass would change one another"
        )
    return None


def settle(model: PreTrainedModel) -> None:
    """Give its routers the precision that they compute in, as their own first pass would.

    A pass of ours would in inference mode, and the user's model could not be trained any more.
    """
    for router in bounded(model):
        router.classifier.to(router.dtype)


def reads_otherwise(model: PreTrainedModel) -> bool:
    """Whether its encoder reads something else than token ids."""
    return bool(getattr(model, "main_input_name", "input_ids") != "input_ids")


def hearing(model: PreTrainedModel) -> Ear | None:
    """What it reads of audio; None: it reads token ids."""
    return Ear(model) if reads_otherwise(model) else None


def given(inputs: Sequence[EncoderInput], model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What its encoder is called with for inputs of one shape."""
    if inputs[0].features is None:
        return {"input_ids": torch.tensor([[*one.tokens] for one in inputs], device=model.device)}
    stacked = torch.stack([one.features for one in inputs if one.features is not None])
    return {model.main_input_name: stacked.to(model.device, model.dtype)}


def input_vocabulary(model: PreTrainedModel) -> int:
    """Ids that the encoder has rows for; 0: it reads none."""
    if reads_otherwise(model):
        return 0
    embeddings: Any = model.get_encoder().get_input_embeddings()
    return int(embeddings.weight.shape[0])


def longest_input(config: Any) -> int:
    """Tokens that the encoder has positions for; very many where it counts distances alone."""
    return int(getattr(config, "max_position_embeddings", None) or WITHOUT_LIMIT)


def one_vocabulary(model: PreTrainedModel) -> bool:
    """Whether what the encoder reads are ids of what the decoder writes."""
    return bool(getattr(model.config, "share_encoder_decoder_embeddings", True))
