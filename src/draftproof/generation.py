"""What an encoder-decoder's generation config rules about every token, as transformers applies it.

A rule looks at the text that a row follows, the path of a node included. Knows no requests. What
samples or penalises is no rule: that is `SamplingParams`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    NoBadWordsLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

# What changes a greedy text, is no rule that is followed here, and the values that change nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (None, 1.0),
    "sequence_bias": (None,),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
}


@dataclass(frozen=True)
class Context:
    """Of one text: what rules go by."""

    given: torch.LongTensor  # (1, tokens) that the encoder read
    begin: int  # tokens of the decoder's prompt
    free: int  # tokens before the first one that no rule forces
    longest: int | None  # tokens in the end, if it is not cut before
    ends: list[int]
    device: str
    config: Any = None
    prompt: Sequence[int] = ()  # of the decoder


class Banned:
    """Of these tokens none comes next, where `at` says so of a text's length.

    As transformers' rules have it, which look for each token of the vocabulary among the ids: for
    every node of a tree, several times as long as this takes.
    """

    def __init__(self, ids: Iterable[int], at: Callable[[int], bool] = lambda length: True) -> None:
        self.ids, self.at = sorted({*ids}), at
        self.places: Tensor | None = None  # of those that the vocabulary has

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """ids (1, n), scores (1, V) -> (1, V)."""
        if not self.at(ids.shape[-1]):
            return scores
        if self.places is None:
            size = scores.shape[-1]
            self.places = torch.tensor(
                [each for each in self.ids if 0 <= each < size], dtype=torch.long
            ).to(scores.device)
        return scores.index_fill(-1, self.places, -math.inf)


class BadWords:
    """The last token of no word comes behind the others of it; one that ends a text may."""

    def __init__(self, words: list[list[int]], ends: Sequence[int]) -> None:
        NoBadWordsLogitsProcessor(words, list(ends) or None)  # which refuses what is none
        self.most = max(max(word, default=0) for word in words)
        self.alone = Banned(word[0] for word in words if len(word) == 1 and word[0] not in ends)
        self.longer: dict[int, list[list[int]]] = {}  # by the last token but one
        for word in words:
            if len(word) > 1:
                self.longer.setdefault(word[-2], []).append(word)
        self.reach = max(map(len, words)) - 1

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if self.most >= scores.shape[-1]:
            raise ValueError(
                f"bad_words_ids of the model's generation config holds token id {self.most}, and "
                f"the vocabulary ends at {scores.shape[-1] - 1}"
            )
        scores = self.alone(ids, scores)
        if self.longer:
            text = ids[0, -self.reach :].tolist()
            known = self.longer.get(text[-1], []) if text else []
            found = [word[-1] for word in known if text[1 - len(word) :] == word[:-1]]
            if found:
                scores = Banned(found)(ids, scores)
        return scores


class Repeats:
    """No run of `size` tokens that `given` (n,) has, or the text itself (None), is written."""

    def __init__(self, size: int, given: Tensor | None = None) -> None:
        self.size, self.given = size, given

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        text, before = ids[0], self.size - 1
        source = text if self.given is None else self.given.to(text.device)
        if len(text) < before or len(source) < self.size:
            return scores
        runs = source.unfold(0, self.size, 1)  # (runs, size)
        alike = (runs[:, :before] == text[len(text) - before :]).all(1)
        return scores.index_fill(-1, runs[alike, before], -math.inf)


def _least_length(least: int, text: Context) -> Any:
    return Banned(text.ends, lambda length: length < least)


def _least_new(least: int, text: Context) -> Any:
    return Banned(text.ends, lambda length: length - text.begin < least)


def _timestamps(on: bool, text: Context) -> Any:
    """Whisper's; a prompt that ends with its token for none of them wants none."""
    if text.prompt and text.prompt[-1] == text.config.no_timestamps_token_id:
        return None
    return WhisperTimeStampLogitsProcessor(text.config, begin_index=text.begin)


def _last(token: int | list[int], text: Context) -> Any:
    if text.longest is None:
        return None
    return ForcedEOSTokenLogitsProcessor(text.longest, token, device=text.device)


# By the name in a generation config, in transformers' order.
RULES: dict[str, Callable[[Any, Context], Any]] = {
    "encoder_no_repeat_ngram_size": lambda n, text: Repeats(n, text.given[0]),
    "no_repeat_ngram_size": lambda n, text: Repeats(n),
    "bad_words_ids": lambda words, text: BadWords(words, text.ends),
    "min_length": _least_length,
    "min_new_tokens": _least_new,
    "forced_bos_token_id": lambda token, text: ForcedBOSTokenLogitsProcessor(token),
    "forced_eos_token_id": _last,
    "suppress_tokens": lambda ids, text: Banned(ids),
    "begin_suppress_tokens": lambda ids, text: Banned(ids, lambda length: length == text.free),
    "return_timestamps": _timestamps,
}
OFF = [
    "return_timestamps",
    "encoder_no_repeat_ngram_size",
    "no_repeat_ngram_size",
    "min_length",
    "min_new_tokens",
]


class Generation:
    """The generation config of one model. end_ids: tokens that end a text.

    Raises `ValueError` for what it asks and what is not followed.
    """

    def __init__(self, model: Any, end_ids: Sequence[int]) -> None:
        self.config: Any = model.generation_config
        self.end_ids = list(end_ids)
        starts = [
            getattr(config, name, None)
            for name in ("decoder_start_token_id", "bos_token_id")
            for config in (self.config, model.config)
        ]
        self.start: int | None = next((int(each) for each in starts if each is not None), None)
        for name, idle in REFUSED.items():
            if (value := getattr(self.config, name, None)) not in idle:
                raise ValueError(
                    f"the model's generation config asks for {name}={value!r}, which is not "
                    "followed for encoder-decoders: set it to None in model.generation_config"
                )

    def warnings(self, penalised: bool) -> list[str]:
        """What it asks and a request does not do. penalised: it has a repetition penalty."""
        beams = getattr(self.config, "num_beams", None) or 1
        penalty = getattr(self.config, "repetition_penalty", None) or 1.0
        said = []
        if beams > 1:
            said.append(f"the model's generation config asks for {beams} beams, and one is written")
        if penalty != 1.0 and not penalised:
            said.append(
                f"the model's generation config asks for repetition_penalty={penalty:g}: "
                "dp.SamplingParams.from_model(llm) follows it"
            )
        return said

    def rules(
        self,
        given: Sequence[int],
        prompt: Sequence[int],
        longest: int | None,
        device: torch.device,
    ) -> Rules | None:
        """For one text; None: there are none.

        given: what the encoder read. prompt: the decoder's. longest: tokens that
        the text has in the end, prompt included, where it is not cut before; None: open.
        """
        begin = len(prompt)
        read = torch.tensor([list(given)], device=device)
        asked = {name: getattr(self.config, name, None) for name in RULES}
        forced = asked["forced_bos_token_id"] is not None
        context = Context(
            cast(torch.LongTensor, read),
            begin,
            begin + (begin == 1 and forced),
            longest,
            self.end_ids,
            str(device),
            self.config,
            prompt,
        )
        on = {
            name: value
            for name, value in asked.items()
            if value is not None and (value or name not in OFF)
        }
        processors = [
            rule for name, value in on.items() if (rule := RULES[name](value, context)) is not None
        ]
        return Rules(processors) if processors else None


class Rules:
    """(ids (n,), row (V,)) -> row (V,): see `History.process`."""

    def __init__(self, processors: Sequence[Any]) -> None:
        self.processors = processors

    def __call__(self, ids: Tensor, row: Tensor) -> Tensor:
        ids, scores = ids[None].to(row.device), row[None]
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores[0]
