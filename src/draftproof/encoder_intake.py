"""Prompts and parameters become requests of an encoder-decoder.

A prompt is what the encoder reads. What the decoder starts from is the model's own start token, and
behind it what a user gives. Nothing is loaded, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.asked import integers
from draftproof.generation import Generation
from draftproof.intake import Intake
from draftproof.request import Request
from draftproof.runners.base import EncoderInput
from draftproof.sampling import SamplingParams
from draftproof.verify import Typical
from draftproof.writing import Rule


class EncoderIntake(Intake):
    """Makes the requests for one encoder-decoder. runner: with its numbers; it does not run."""

    def __init__(
        self, tokenizer: Any, runner: Any, end_ids: Sequence[int], generation: Generation
    ) -> None:
        super().__init__(tokenizer, runner.vocabulary, runner.max_length, end_ids)
        self.readable = runner.input_vocabulary
        self.longest_input, self.comparable = runner.longest_input, runner.comparable
        self.device: torch.device = runner.device
        self.generation = generation

    def requests(
        self,
        prompt: Any,
        params: SamplingParams,
        rule: str | Typical | Rule = "coupled",
        salt: str = "",
        decoder_prompt: Any = None,
    ) -> list[Request]:
        """One for each completion of a prompt, which share what the encoder reads.

        An `EncoderInput` comes from a loop that has start tokens and rules of its own: what the
        decoder starts from is then taken as it is.
        """
        if isinstance(prompt, EncoderInput):
            return self.of_ids(
                self.fitting(self._given(decoder_prompt)), params, rule, salt, prompt
            )
        given = self.read(prompt)
        ids = self.begins([*given.tokens], decoder_prompt)
        if params.prompt_logprobs is not None and len(ids) < 2:
            raise ValueError(
                "prompt_logprobs are of what the decoder is given, and what an encoder reads has "
                "none: give decoder_prompt, or drop them"
            )
        made = self.of_ids(ids, params, rule, salt, given)
        longest = None if params.max_tokens is None else len(ids) + params.max_tokens
        warnings = self.generation.warnings(params.repetition_penalty != 1)
        rules = self.generation.rules(given.tokens, ids, longest, self.device)
        for request in made:
            request.warnings += warnings
            if not request.finished:
                request.history.process = rules
        return made

    def read(self, prompt: Any) -> EncoderInput:
        """What the encoder reads of one prompt."""
        return EncoderInput(self.ids(prompt), self.comparable)

    def ids(self, prompt: Any) -> list[int]:
        """Token ids of what the encoder reads, which it has and has positions for."""
        ids = self.encoded(prompt)
        if not ids:
            raise ValueError("the prompt is empty: give the encoder at least one token to read")
        if len(ids) > self.longest_input:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and the encoder reads at most "
                f"{self.longest_input}: shorten it"
            )
        return ids

    def begins(self, ids: list[int], decoder_prompt: Any) -> list[int]:
        """What the decoder starts from: its start token, and what is given behind it."""
        ids = self._given(decoder_prompt)
        if self.generation.start is not None and ids[:1] != [self.generation.start]:
            ids.insert(0, self.generation.start)
        if not ids:
            raise ValueError(
                "the model's generation config has no decoder_start_token_id: set it there, or "
                "give decoder_prompt"
            )
        return self.fitting(ids)

    def fitting(self, ids: list[int]) -> list[int]:
        """What the decoder starts from, which leaves room for one token more."""
        if len(ids) > self.max_length - 1:
            raise ValueError(
                f"the decoder starts from {len(ids)} tokens and at most {self.max_length - 1} fit "
                f"(max_length {self.max_length}): shorten decoder_prompt"
            )
        return ids

    def _given(self, given: Any) -> list[int]:
        if given is None:
            return []
        if isinstance(given, str):
            if self.tokenizer is None:
                raise ValueError("this model came without a tokenizer: give decoder_prompt as ids")
            ids = self.tokens("decoder_prompt", given, add_special_tokens=False)
        else:
            ids = integers(given, "decoder_prompt")
        self.check("decoder_prompt", ids, self.vocabulary)
        return ids
