"""A tokenizer as a draft of another vocabulary uses it: what ids add to a text, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

BROKEN = "\ufffd"  # what bytes that are no character, or not yet, are decoded to


class Script:
    """A tokenizer; special tokens whose string is not in the other's vocabulary are mute."""

    def __init__(self, tokenizer: Any, foreign: Collection[str]) -> None:
        self.encode = partial(tokenizer.encode, add_special_tokens=False)
        self.decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        self.strings = {i: string for string, i in tokenizer.get_vocab().items()}
        self.mute = {i for i in tokenizer.all_special_ids if self.strings.get(i) not in foreign}
        self.letter = self.encode("a")[-1:]

    def text(self, ids: Sequence[int], behind: Sequence[int] = ()) -> str:
        """What `ids` add to the text of the ids before them."""
        known, heard = ([i for i in each if i not in self.mute] for each in (behind, ids))
        return str(self.decode(known + heard)[len(self.decode(known)) :])

    def ids(self, text: str, behind: str) -> list[int] | None:
        """What `text` adds to the ids of the text before it; None if a token spans both."""
        known, whole = self.encode(behind), self.encode(behind + text)
        return whole[len(known) :] if whole[: len(known)] == known else None

    def piece(self, i: int) -> str:
        """What a token adds to the text of a letter; its own string if that is broken."""
        text = self.text([i], self.letter) if i in self.strings else ""
        return BROKEN + self.strings.get(i, "") if BROKEN in text or not text else text
