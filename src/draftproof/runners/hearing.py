"""What the encoder of a model reads of audio: the shape of its features, and what they become.

Whisper reads a spectrogram of one fixed length, Speech2Text one of any length, Moonshine the wave
itself. Knows no files, rates or extractors: features are tensors here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftproof.runners.base import EncoderInput

LONGEST = 1 << 22  # numbers of a wave, where nothing else bounds it: four minutes at 16 kHz


class Ear:
    """The features of one model, without a batch: (bins, frames), (frames, bins) or (samples,).

    Raises `ValueError`, with what is to stand behind the model's name, for other models.
    """

    def __init__(self, model: Any) -> None:
        config, self.name = model.config, str(model.main_input_name)
        self._made: Any = getattr(model, "_get_feat_extract_output_lengths", None)
        self.bins: int | None = None
        self.first = False  # whether bins stand before frames
        self.fixed = False  # whether there are always `longest` frames
        self.longest = LONGEST
        if self._made is None or self.name not in ("input_features", "input_values"):
            raise ValueError(f"reads {self.name}, of which nothing is known")
        if self.name == "input_values":
            return
        bins = getattr(config, "num_mel_bins", None)
        if bins is None and not hasattr(config, "input_feat_per_channel"):
            raise ValueError(f"reads {self.name} of a shape that is not known")
        if bins is not None:
            encoder = model.get_encoder()
            strides = encoder.conv1.stride[0] * encoder.conv2.stride[0]
            self.bins, self.first, self.fixed = int(bins), True, True
            self.longest = int(config.max_source_positions) * int(strides)
        else:
            self.bins = int(config.input_feat_per_channel)
            self.longest = int(config.max_source_positions)

    @property
    def rank(self) -> int:
        """Dimensions of the features of one input."""
        return 1 if self.bins is None else 2

    @property
    def shape(self) -> tuple[int | str, ...]:
        """As it is told: a word stands for any number."""
        if self.bins is None:
            return ("samples",)
        frames = self.longest if self.fixed else "frames"
        return (self.bins, frames) if self.first else (frames, self.bins)

    def frames(self, features: Tensor) -> int:
        """How long they are."""
        return int(features.shape[-1 if self.first or self.bins is None else 0])

    def brought(self, features: Tensor) -> EncoderInput:
        """Features as a request brings them.

        Raises `ValueError` for a wrong shape, for numbers that are none, too many or too few.
        """
        shape, given = "(" + ", ".join(map(str, self.shape)) + ")", tuple(features.shape)
        bins = self.bins is None or (features.shape[0 if self.first else -1] == self.bins)
        if features.dim() != self.rank or not bins or 0 in given:
            raise ValueError(f"{self.name} are of shape {given}, and the encoder reads {shape}")
        count = self.frames(features)
        if count > self.longest or (self.fixed and count != self.longest):
            most = "exactly" if self.fixed else "at most"
            what = "samples" if self.bins is None else "frames"
            raise ValueError(
                f"{self.name} have {count} {what} and the encoder reads {most} {self.longest}: cut "
                "or pad the audio"
            )
        if not features.is_floating_point():
            raise ValueError(f"{self.name} are {features.dtype}: give floating-point numbers")
        if not bool(torch.isfinite(features).all()):
            raise ValueError(f"{self.name} hold NaN or infinite numbers: mend the audio")
        if (length := self.length(count)) < 1:
            raise ValueError(f"{self.name} of {count} are too short: the encoder makes nothing")
        return EncoderInput((), False, features=features, length=length)

    def length(self, count: int) -> int:
        """Positions that the encoder makes of so many frames or samples."""
        return int(self._made(count))

    def example(self, length: int) -> EncoderInput:
        """Some noise, of about so many positions."""
        count = self.longest
        if not self.fixed:
            count = next(n for n in range(1, self.longest + 1) if self.length(n) >= length)
        shape = tuple(count if isinstance(each, str) else each for each in self.shape)
        numbers = torch.arange(1, 1 + count * (self.bins or 1), dtype=torch.float32)
        return self.brought(torch.sin(numbers * numbers + length).reshape(shape))
