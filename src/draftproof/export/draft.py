"""A draft as a folder that transformers loads by itself: the target's vocabulary and tokenizer.

Other engines compare `vocab_size`, and some the tokenizers; embeddings of a draft may be padded
otherwise than the target's. Rows that are too many are cut, since the target never writes their
ids. An id that the draft has no row for gets the mean of all rows, in embeddings and head alike:
its logit is then the mean of the draft's logits, so it is never the draft's first choice, and has
at most 1 / rows of its probability. No row is -inf, which would make loaders and samplers stumble.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from draftproof import hub, places
from draftproof.bundled import located
from draftproof.drafting.beside import stranger
from draftproof.export.asked import Asked
from draftproof.out_folders import writing
from draftproof.profiles import shape_of
from draftproof.runners import choice, encoders
from draftproof.runners.checkpoint import EMBEDDINGS, HEAD
from draftproof.vocabularies import load_tokenizer

ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")  # the rest is about sampling


@dataclass(frozen=True)
class Facts:
    """Of what was written, and of the target that it is for."""

    architecture: str
    vocabulary: int
    added: int  # rows that the draft did not have; negative: that were cut
    parameters: int
    precision: str
    length: int | None  # the longest context of the draft, and of the target
    target_length: int | None

    @property
    def is_shorter(self) -> bool:
        """Whether the draft's context ends before the target's."""
        if self.length is None or self.target_length is None:
            return False
        return self.length < self.target_length


def source(asked: Asked) -> Any:
    """Where the draft lies. Raises `ValueError` for what is none."""
    places.check(asked.source)
    return hub.fetched(located(asked.source, "draft"))


def loading(asked: Asked) -> dict[str, Any]:
    """Options of whatever loads the target."""
    options = {"revision": None, "trust_remote_code": False}
    return options | {name: asked.options[name] for name in options if name in asked.options}


def target_of(asked: Asked) -> tuple[Any, Any]:
    """Where the target lies, and its configuration; `ValueError` for another than a profile's."""
    options = loading(asked)
    places.check(asked.target, options["revision"])
    place = hub.fetched(located(asked.target, "target"), options["revision"])
    if encoders.is_one(place, **options):
        raise ValueError(f"{asked.target} is an encoder-decoder, and drafts for these stay here")
    config = choice.configuration(place, **options)
    if asked.shape is not None and asked.shape != shape_of(config):
        raise ValueError(
            f"the profile was made for another model than {asked.target}: run draftproof tune on "
            "this one"
        )
    return place, config


def write(
    asked: Asked, folder: Path, architectures: frozenset[str] | None, **generation: Any
) -> Facts:
    """Write the draft into `folder`.

    architectures: those that the engine has, by their class; None: any. generation: further
    fields of the generation config. Raises `ValueError`, in one sentence.
    """
    draft, trust = source(asked), loading(asked) | {"revision": None}
    if encoders.is_one(draft, **trust):
        raise ValueError(f"{asked.source} is an encoder-decoder, and drafts for these stay here")
    target, config = target_of(asked)
    wanted, known = config.get_text_config(), choice.configuration(draft, **trust)
    names = getattr(known, "architectures", None) or ["a model without a named architecture"]
    if architectures is not None and names[0] not in architectures:
        raise ValueError(
            f"the draft is a {names[0]}, which the engine has no class for: of those read it takes "
            f"{', '.join(sorted(architectures))}; --for transformers takes any"
        )
    theirs = load_tokenizer(target, None, loading(asked))
    own = load_tokenizer(draft, None, trust)
    if theirs is None:
        raise ValueError(f"{asked.target} came without a tokenizer, and other engines read text")
    rows = known.get_text_config().vocab_size
    if said := stranger(rows, wanted.vocab_size, own, theirs):
        raise ValueError(
            f"the draft {asked.source} has another vocabulary than the target ({said}): use a "
            "draft with the target's tokenizer"
        )
    model: Any = choice.load(draft, device=torch.device("cpu"), dtype=None, **trust)
    added = resized(model, wanted.vocab_size)
    ends = {end: getattr(model.config, end, None) for end in ENDS}
    model.generation_config = GenerationConfig(**ends, **generation)
    with writing(folder):
        model.save_pretrained(folder)
        theirs.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # they are written for their owner alone
    return Facts(
        type(model).__name__,
        wanted.vocab_size,
        added,
        sum(each.numel() for each in model.parameters()),
        str(model.dtype).removeprefix("torch."),
        getattr(known.get_text_config(), "max_position_embeddings", None),
        getattr(wanted, "max_position_embeddings", None),
    )


def head_of_target(asked: Asked) -> Tensor:
    """(V, d) The target's LM head, of its files where they can be read one tensor at a time."""
    (place, _), options = target_of(asked), loading(asked)
    stored = choice.stored(place, as_they_lie=False, dtype=None, **options)
    if stored is not None:
        return stored[EMBEDDINGS if stored.tied else HEAD].clone()
    model: Any = choice.load(place, device=torch.device("cpu"), dtype=None, **options)
    weight: Tensor = model.get_output_embeddings().weight.detach()
    return weight


def resized(model: Any, vocabulary: int) -> int:
    """Give a model so many rows, as this module says; how many were added."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    if rows == vocabulary:
        return 0
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    parts = [embeddings.weight, head.weight, getattr(head, "bias", None)]
    means = [None if part is None else part.detach().float().mean(0) for part in parts]
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    parts = [embeddings.weight, head.weight, getattr(head, "bias", None)]
    with torch.no_grad():
        for part, mean in zip(parts, means, strict=True):
            if part is not None and mean is not None and vocabulary > rows:
                part[rows:] = mean.to(part.dtype)
    return vocabulary - rows
