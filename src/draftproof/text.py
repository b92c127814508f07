"""Tokens become text as they come: incremental detokenisation and stop strings.

Text that may still change (half a character, the beginning of a stop string) is held back from
streaming. Does not know requests, or what a model computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

CONTEXT = 6  # prompt tokens that the first output token is decoded beside


class TextStream:
    """The text of an output, growing; cut before the first stop string."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._decode = tokenizer.decode
        self._ids = list(prompt[-CONTEXT:])
        self._prefix, self._read = 0, len(self._ids)  # decoded from prefix, emitted up to read
        self._known = self._text_of(self._ids)
        self._stop = stop
        self._floor = 0  # characters in which no stop string is looked for
        self._longest = max(map(len, stop), default=0)
        self._stopped = False
        self._sent = 0
        self._done = False
        self.text = ""

    def push(self, tokens: Sequence[int], stops: bool = True) -> None:
        """Append tokens; decoded at once only where a stop string may end the output.

        stops: whether stop strings count in the text of these tokens (not before `min_tokens`).
        """
        self._ids += tokens
        if self._stop:
            self._advance(stops)

    def flush(self) -> None:
        """The output has ended: emit what waited, as it is."""
        if not self._done:
            self._done = True
            self._advance()

    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._stopped

    def take(self) -> str:
        """Text that is new since the last call and can no longer change."""
        self._advance()
        end = len(self.text)
        if not self._done and self._longest:
            end = max(self._sent, end - self._held())
        fresh = self.text[self._sent : end]
        self._sent = max(self._sent, end)
        return fresh

    def _advance(self, stops: bool = True) -> None:
        """Emit what is decoded for good; half a character waits for its other half."""
        if self._stopped or self._read == len(self._ids):
            return
        fresh, begin = self._text_of(self._ids[self._prefix :]), len(self.text)
        if fresh.endswith("\ufffd") and not self._done:
            return
        self.text += fresh[len(self._known) :]
        self._prefix, self._read = self._read, len(self._ids)
        self._known = self._text_of(self._ids[self._prefix :])
        if not stops:
            self._floor = len(self.text)
        for stop in self._stop:
            at = self.text.find(stop, max(self._floor, begin - self._longest + 1))
            if at >= 0:
                self._stopped = True
                self.text = self.text[:at]

    def _held(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0

    def _text_of(self, ids: list[int]) -> str:
        text: str = self._decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def chat_ids(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation under the model's own template.

    Raises `ValueError` when the tokenizer has no template.
    """
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise ValueError("this model has no chat template: use generate with a plain prompt")
    ids = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(i) for i in ids]


def load_tokenizer(model: Any, tokenizer: Any, options: dict[str, Any]) -> Any:
    """The given tokenizer, or the one that lies with the model; None if there is none."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    name = tokenizer if tokenizer is not None else model
    if not isinstance(name, str | Path):
        return tokenizer  # any object with a tokenizer's calls, or None
    try:
        return AutoTokenizer.from_pretrained(str(name), **options)
    except (OSError, ValueError, KeyError) as error:
        if tokenizer is None:
            return None  # a folder with weights only: token ids in, token ids out
        raise ValueError(f"cannot load the tokenizer {name!r}: {str(error)[:200]}") from error


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """End-of-text ids of the generation config and of the tokenizer."""
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = listed if listed is not None else getattr(model.config, "eos_token_id", None)
    ids = set(listed if isinstance(listed, list) else [] if listed is None else [listed])
    own = getattr(tokenizer, "eos_token_id", None)
    return sorted(ids | (set() if own is None else {own}))
