"""Tokens as clients see them, as text and as bytes; log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

LEAST = -9999.0  # of a token that cannot occur: JSON has no infinity
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
Logprobs = Mapping[int, float]


@cache
def _byte_of() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


class Pieces:
    """The text and the bytes of single tokens. tokenizer: None shows ids only."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def of(self, token: int) -> tuple[str, bytes]:
        """Half a character has U+FFFD in its text, and its bytes as they are."""
        if token not in self._known:
            self._known[token] = self._made(token)
        return self._known[token]

    def _made(self, token: int) -> tuple[str, bytes]:
        if self.tokenizer is None:
            return "", b""
        try:
            text = str(self.tokenizer.decode([token], skip_special_tokens=False))
        except Exception:  # an id without an entry, as padding of the embedding has
            return "", b""
        if "\ufffd" not in text:
            return text, text.encode("utf-8", "replace")
        return text, self._raw(token) or text.encode("utf-8", "replace")

    def _raw(self, token: int) -> bytes | None:
        convert = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        entry = None if convert is None else convert(token)
        if not isinstance(entry, str):
            return None
        if byte := BYTE.fullmatch(entry):
            return bytes([int(byte[1], 16)])
        known = _byte_of()
        return bytes(known[c] for c in entry) if all(c in known for c in entry) else None

    def named(self, token: int, as_id: bool) -> str:
        return f"token_id:{token}" if as_id else self.of(token)[0]


def chat(
    pieces: Pieces, tokens: Sequence[int], known: Sequence[Logprobs], top: int, as_ids: bool
) -> dict[str, Any]:
    """Of a chat's choice: `content`, an entry for each token."""

    def entry(token: int, value: float) -> dict[str, Any]:
        return {
            "token": pieces.named(token, as_ids),
            "logprob": _finite(value),
            "bytes": list(pieces.of(token)[1]),
        }

    return {
        "content": [
            entry(token, of[token])
            | {"top_logprobs": [entry(*pair) for pair in list(of.items())[:top]]}
            for token, of in zip(tokens, known, strict=True)
        ]
    }


def text(
    pieces: Pieces,
    tokens: Sequence[int],
    known: Sequence[Logprobs | None],
    offset: int,
    as_ids: bool,
) -> dict[str, Any]:
    """Of a completion's choice: four lists. known: None of a token that nothing stands before."""
    names = [pieces.named(token, as_ids) for token in tokens]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    tops: list[dict[str, float] | None] = []
    for of in known:
        top: dict[str, float] | None = None if of is None else {}
        for token, value in (of or {}).items():
            assert top is not None
            name = pieces.named(token, as_ids)
            top[name] = max(top.get(name, LEAST), _finite(value))  # some share a text
        tops.append(top)
    values = [
        None if of is None else _finite(of[token]) for token, of in zip(tokens, known, strict=True)
    ]
    return {
        "tokens": names,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def prompt(pieces: Pieces, known: Sequence[Logprobs | None]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: of each token of a prompt, the best ids and its own."""
    return [
        None
        if of is None
        else {
            str(token): {"logprob": _finite(value), "decoded_token": pieces.of(token)[0]}
            for token, value in of.items()
        }
        for of in known
    ]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LEAST
