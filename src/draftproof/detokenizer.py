"""Incremental detokenisation: the text of tokens that come a few at a time, in linear time.

Knows of a tokenizer nothing but its `decode`; not what is done with the text.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Any

CONTEXT = 6  # prompt tokens that the first output token is decoded beside, more if they are silent
WAIT = 4  # tokens: no character of UTF-8 has more bytes
WINDOW = 8  # tokens that stay before those to come
LONGEST = 64  # of such tokens, where they show nothing by themselves
CHUNK = 64  # tokens decoded at once
UNKNOWN = "\ufffd"  # how decoders write half a character, or bytes that are none


class Detokenizer:
    """Text of tokens that come one by one, in linear time, equal to one decode of them all.

    New tokens are decoded behind a window of earlier ones, because decoders treat the first token
    that shows text differently (a leading space is lost). What ends in U+FFFD may be half a
    character and waits until it is whole, or until `WAIT` tokens show that it never will be.

    A decoder with byte fallback writes U+FFFD for every byte of a run of byte tokens as soon as
    one byte of the run is wrong. The characters of such a run that were whole before have been
    given out and stay; from the wrong byte on the text is the decoder's.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._decode_with = tokenizer.decode
        self._prompt: Sequence[int] | None = prompt
        self._window: list[int] = []  # whole text, given out
        self._open: list[int] = []  # tokens behind it that end in what may be half a character
        self._text = ""  # of window and open tokens
        self._seen = ""  # its beginning that is given out
        self._sizes: list[int] = []  # length of the text at each open token
        self._cuts: list[str] = []  # text of a prompt without the half character it ends in
        self._silent: set[int] = set()  # tokens that show nothing anywhere: special ones

    def feed(self, tokens: Sequence[int]) -> str | None:
        """Text that `tokens` complete; None if they have to come one by one.

        If the decoder raises for a token, that token has changed nothing.
        """
        if self._prompt is not None:
            self._begin(self._prompt)
            self._prompt = None
        tokens = [token for token in tokens if token not in self._silent]
        if len(tokens) == 1:
            return self._one(tokens[0])
        return self._several(tokens) if tokens else ""

    def finish(self) -> str:
        """Text that waited, as it is."""
        text, seen = self._text, self._seen
        if not text.startswith(seen):
            text, seen = self._decode(self._open), ""
        self._text = self._seen = text
        return text[len(seen) :]

    def _begin(self, prompt: Sequence[int]) -> None:
        size = CONTEXT
        text = self._decode(prompt[-size:])
        # Special tokens alone show nothing; a context cut inside a character misreads bytes.
        while size < len(prompt) and (not text or text[0] == UNKNOWN):
            size *= 2
            text = self._decode(prompt[-size:])
        self._window, self._text, self._seen = list(prompt[-size:]), text, text
        if text.endswith(UNKNOWN):
            self._cuts = [self._decode(self._window[:-back]) for back in range(1, WAIT)]

    def _several(self, tokens: list[int]) -> str | None:
        """Text of many tokens with one decode; None where characters have to be watched."""
        text = self._decode(self._window + self._open + tokens)
        fresh = text[len(self._seen) :]
        if not text.startswith(self._seen) or UNKNOWN in fresh:
            return None
        self._window, self._open = self._window + self._open + tokens, []
        self._sizes, self._cuts, self._text, self._seen = [], [], text, text
        self._shorten()
        return fresh

    def _one(self, token: int) -> str:
        """Text that one token completes."""
        text = self._decode([*self._window, *self._open, token])
        if text == self._text and self._shows_nothing(token):
            return ""
        self._open.append(token)
        self._text, half = text, text.endswith(UNKNOWN)
        if not text.startswith(self._seen):
            cut = next(filter(text.startswith, self._cuts), None)
            if cut is not None:
                self._seen = cut  # the prompt ended inside a character, which is whole now
            elif half and len(self._open) < WAIT:
                return ""
            elif half or len(self._open) > 1:
                text = self._restart()
            else:  # a decoder that takes back what it wrote
                self._seen = os.path.commonprefix([self._seen, text])
        return self._complete(text)

    def _complete(self, text: str) -> str:
        """Give out what is complete of `text`, that of window and open tokens."""
        before, whole = len(self._seen), len(text.rstrip(UNKNOWN))
        if whole == len(text):
            end = whole
            self._window, self._open = self._window + self._open, []
            self._sizes, self._cuts = [], []
        elif whole > before:  # only the newest token ends in half a character
            end = whole
            self._window, self._open = self._window + self._open[:-1], self._open[-1:]
            self._sizes = [len(text)]
        else:  # no character that began WAIT tokens ago can still become whole
            self._sizes = [*self._sizes, len(text)][-WAIT:]
            end = self._sizes[0] if len(self._sizes) == WAIT else before
        end = max(end, before)
        self._text, self._seen = text, text[:end]
        return text[before:end] + self._shorten()

    def _restart(self) -> str:
        """Text of the open tokens alone: a run of bytes has turned invalid behind the window."""
        text = self._decode(self._open)
        self._window, self._seen = [], ""
        # Such a decoder writes one U+FFFD for a byte.
        self._sizes = [len(text) - back for back in range(WAIT - 1, 0, -1)]
        return text

    def _shows_nothing(self, token: int) -> bool:
        """Whether `token`, which changed nothing, is one without text.

        It may also be a byte within a character, or a space that shows when more text follows.
        """
        if self._decode([token]):
            return False
        if not self._text:
            return not self._decode([token, token])
        ids = [one for one in self._window + self._open if one != token]
        back = ids[::-1]  # the same token on both sides: some decoders write a pair once
        if self._decode([*ids, token, *back]) != self._decode(ids + back):
            return False
        self._silent.add(token)
        return True

    def _shorten(self) -> str:
        """Forget tokens that those to come need not be decoded beside; mostly returns ""."""
        if len(self._open) > WINDOW + WAIT:
            # The first ones keep a run of bytes invalid, the last ones may begin a character.
            return self._keep([], self._open[:WAIT] + self._open[-WAIT:])
        if len(self._window) <= WINDOW:
            return ""
        size = WAIT
        while size < len(self._window):
            ids = self._window[-size:]
            text = self._decode(ids + self._open)
            end = len(text) - len(self._text) + len(self._seen)
            same = end > 0 and text[end:] == self._text[len(self._seen) :]
            # A window that begins inside a character shows bytes that the text has not. At its
            # very beginning alone they do no harm: what follows them is no run of bytes any more.
            shown = text[:end].lstrip(UNKNOWN)
            sound = (shown and UNKNOWN not in shown) or self._text.endswith(text)
            if same and (sound or size >= WINDOW):
                return self._keep(ids, self._open, text)
            size += 1 if size < WINDOW - 1 else size
        if len(self._window) <= LONGEST:
            return ""
        ids = [one for one in self._window if one not in self._silent]
        silent = {one for one in set(ids) if self._shows_nothing(one)}
        ids = [one for one in ids if one not in silent]
        if len(ids) > LONGEST:  # spaces, which such a decoder shows only before other text
            ids = ids[: LONGEST // 2] + ids[-WINDOW:]
        return self._keep(ids, self._open)

    def _keep(self, window: list[int], open_: list[int], text: str | None = None) -> str:
        """Go on with fewer tokens, whose text ends as that of all did."""
        if text is None:
            text = self._decode(window + open_)
        rest, moved = self._text[len(self._seen) :], len(text) - len(self._text)
        if not text.endswith(rest):  # an odd decoder: what waits is given out
            self._window, self._open, self._sizes = window + open_, [], []
            self._text = self._seen = text
            return rest
        self._window, self._open, self._text = window, open_, text
        self._seen = text[: len(text) - len(rest)]
        self._sizes = [size + moved for size in self._sizes]
        return ""

    def _decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        try:
            text: str = self._decode_with(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of the Rust library is no Exception
            raise RuntimeError(f"the tokenizer failed: {error}") from error
        return text
