"""Audio becomes what the encoder of a model reads, and requests of it.

One input is a mapping: {"array": wave, "sampling_rate": 16000}, or what the model's own feature
extractor returns, {"input_features": ...}. Rates are checked, nothing is resampled. Nothing runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoFeatureExtractor

from draftproof.asked import decoder_prompts_of, params_of
from draftproof.encoder_intake import EncoderIntake
from draftproof.generation import Generation
from draftproof.intake import Intake
from draftproof.runners.base import EncoderInput
from draftproof.runners.hearing import Ear
from draftproof.sampling import SamplingParams

WAVE = ("array", "raw")  # names of a wave, as data sets and transformers' pipelines have them


def intake_of(runner: Any, tokenizer: Any, end_ids: Sequence[int]) -> Intake:
    """What makes requests for a runner's model. Raises `ValueError` for rules not followed."""
    if not runner.encodes:
        return Intake(tokenizer, runner.vocabulary, runner.max_length, end_ids)
    kind = EncoderIntake if runner.ear is None else AudioIntake
    return kind(tokenizer, runner, end_ids, Generation(runner.model, end_ids))


class AudioIntake(EncoderIntake):
    """Makes the requests for one model that hears."""

    def __init__(self, tokenizer: Any, runner: Any, *given: Any) -> None:
        super().__init__(getattr(tokenizer, "tokenizer", tokenizer), runner, *given)
        self.ear: Ear = runner.ear
        self.model: Any = runner.model
        self._extractor: Any = getattr(tokenizer, "feature_extractor", None)
        self._trust = bool(runner.trust_remote_code)
        if getattr(self.generation.config, "encoder_no_repeat_ngram_size", None):
            raise ValueError(
                "the model's generation config asks for encoder_no_repeat_ngram_size, and its "
                "encoder reads no tokens: set it to None in model.generation_config"
            )

    def asked(
        self, prompts: Any, params: Any, decoder_prompt: Any, inputs: Any, rate: int | None
    ) -> list[tuple[Any, SamplingParams, Any]]:
        if inputs is None:
            raise ValueError(self._otherwise())
        if prompts is not None:
            raise ValueError("give inputs=, which is audio, or prompts, but not both")
        listed = self._several(inputs, rate)
        starts = decoder_prompts_of(decoder_prompt, len(listed))
        return list(zip(listed, params_of(params, len(listed)), starts, strict=True))

    def read(self, prompt: Any) -> EncoderInput:
        """What the encoder reads of one input, in the form that this module tells."""
        if not isinstance(prompt, Mapping):
            raise ValueError(self._otherwise())
        if self.ear.name in prompt:
            return self.ear.brought(self._features(prompt))
        for name in WAVE:
            if name in prompt:
                return self.ear.brought(self._heard(prompt[name], prompt.get("sampling_rate")))
        raise ValueError(self._otherwise())

    def begins(self, ids: list[int], decoder_prompt: Any) -> list[int]:
        """What the decoder starts from; Whisper's task tokens, as its generation config has them.

        A start token may stand behind what was said before.
        """
        given = self._given(decoder_prompt)
        if self.generation.start in given:
            return self.fitting(given)
        if decoder_prompt is None and hasattr(self.model, "_retrieve_init_tokens"):
            return self.fitting(self._opening())
        return super().begins(ids, decoder_prompt)

    def _opening(self) -> list[int]:
        """By transformers' own code, which would listen for a language where none is named."""
        config = copy.deepcopy(self.generation.config)
        config.return_timestamps = bool(getattr(config, "return_timestamps", False))
        forced = getattr(config, "forced_decoder_ids", None)
        named = getattr(config, "language", None) or (forced and forced[0][1] is not None)
        if getattr(config, "lang_to_id", None) and not named:
            raise ValueError(
                "no language is named, and none is listened for: give decoder_prompt, as "
                "'<|en|><|transcribe|><|notimestamps|>', or set model.generation_config.language"
            )
        given = {"batch_size": 1, "generation_config": config, "config": self.model.config}
        made = self.model._retrieve_init_tokens(
            None, num_segment_frames=self.ear.longest, kwargs={}, **given
        )
        return [int(token) for token in made[0]]

    def _several(self, inputs: Any, rate: int | None) -> list[Any]:
        """One input or several, each as a mapping."""
        rank = self.ear.rank
        if isinstance(inputs, Mapping):
            if self.ear.name not in inputs:
                return [inputs if "sampling_rate" in inputs else {**inputs, "sampling_rate": rate}]
            features, mask = _tensor(inputs[self.ear.name]), inputs.get("attention_mask")
            if features.dim() == rank:
                return [inputs]
            rows = [None] * len(features) if mask is None else list(_tensor(mask))
            return [
                {self.ear.name: one, "attention_mask": own}
                for one, own in zip(features, rows, strict=True)
            ]
        if isinstance(inputs, list | tuple) and not inputs:
            raise ValueError("there is nothing to hear: give at least one wave")
        if isinstance(inputs, list | tuple) and not isinstance(inputs[0], int | float):
            return [one for each in inputs for one in self._several(each, rate)]
        given = _tensor(inputs)
        if given.dim() == 1:
            return [{"array": given, "sampling_rate": rate}]
        batch = list(given) if given.dim() == rank + 1 else [given]
        return [{self.ear.name: one} for one in batch]

    def _features(self, given: Mapping[str, Any]) -> Tensor:
        """Of one input, in a batch of its own or in none, without what a mask hides."""
        features, mask = _tensor(given[self.ear.name]), given.get("attention_mask")
        if features.dim() == self.ear.rank + 1 and len(features) == 1:
            features, mask = features[0], None if mask is None else _tensor(mask)[0]
        if mask is None or self.ear.fixed:
            return features
        seen = _tensor(mask).bool().flatten()
        count = int(seen.sum())
        if len(seen) != len(features) or not bool(seen[:count].all()):
            raise ValueError("attention_mask has holes or another length: pad audio on the right")
        return features[:count]

    def _heard(self, wave: Any, rate: Any) -> Tensor:
        """The features of a wave, by the extractor that lies with the model."""
        extractor, array = self._own_extractor(), _tensor(wave)
        if array.dim() != 1:
            raise ValueError(
                f"audio is of shape {tuple(array.shape)}: give one channel, as an array of one "
                "dimension"
            )
        if not array.is_floating_point():
            raise ValueError(
                f"the audio holds whole numbers ({array.dtype}): give numbers between -1 and 1, "
                "as samples / 32768 of 16 bits"
            )
        if not len(array):
            raise ValueError("the audio is empty: give at least one sample")
        if not bool(torch.isfinite(array).all()):
            raise ValueError("the audio holds NaN or infinite numbers: mend it")
        wanted = int(extractor.sampling_rate)
        if rate is None or int(rate) != wanted:
            said = "has no sampling_rate" if rate is None else f"has {rate} samples a second"
            raise ValueError(
                f"the audio {said}, and the model hears {wanted}: resample it, and give "
                f"sampling_rate={wanted}"
            )
        most = getattr(extractor, "n_samples", None)
        if most is not None and len(array) > most:
            raise ValueError(
                f"the audio lasts {len(array) / wanted:.1f} s and the model hears at most "
                f"{most / wanted:g} s: cut it"
            )
        made = extractor(array.float().numpy(), sampling_rate=wanted, return_tensors="pt")
        features: Tensor = made[self.ear.name][0]
        return features

    def _own_extractor(self) -> Any:
        if self._extractor is None:
            name = str(getattr(self.model, "name_or_path", "") or "")
            try:
                self._extractor = AutoFeatureExtractor.from_pretrained(
                    name, trust_remote_code=self._trust
                )
            except Exception as error:  # whatever a folder or the hub comes up with
                raise ValueError(
                    "this model came without a feature extractor: give tokenizer=, a processor of "
                    f"transformers, or features, inputs={{'{self.ear.name}': ...}}"
                ) from error
        return self._extractor

    def _otherwise(self) -> str:
        return (
            f"{type(self.model).__name__} reads audio: give generate(inputs=wave, "
            f"sampling_rate=...), or inputs={{'{self.ear.name}': ...}}; one that is streamed is "
            "{'array': wave, 'sampling_rate': ...}"
        )


def _tensor(given: Any) -> Tensor:
    """Numbers in whatever form, as a tensor on the CPU."""
    try:
        made = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        kind = type(given).__name__
        raise ValueError(f"inputs are arrays of numbers, and no {kind}") from None
    return made
