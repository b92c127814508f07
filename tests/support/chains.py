"""Tokenizers of every decoder chain, random ids over them, and what their text must be."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from draftproof import bundled
from draftproof.text import TextStream

UNKNOWN = "\ufffd"
SPECIAL = ["<s>", "</s>"]  # the first two of what is added; the third one is text
SPACED = ["▁", "▁▁", "▁▁▁▁", "▁a", "a", "▁hello", "world", ".", "▁é", "€x", "\n", "▁b▁"]
PIECES = ["a", "##b", "##ing", "hello", ".", ",", "##.", "do", "n't", "'", "é", "##€"]
# Whole characters, halves, and bytes that fit nowhere.
BYTES = [0x20, 0x41, 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0xFF]
MERGED = [
    b" hello",
    b"a\xe2\x82",
    b"\xac\xe2\x82",
    b"\xac.",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xef\xbf\xbd",
]
FALLBACK = [f"<0x{byte:02X}>" for byte in BYTES]
# GPT-2's alphabet of bytes, in the order of the bytes.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
LETTER = {b: chr(b) for b in VISIBLE} | {b: chr(256 + i) for i, b in enumerate(HIDDEN)}
BUNDLED = bundled.TARGET


def tokenizer_of(tokens: Sequence[str], decoder: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, tokens[0]))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<added>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def spelt(data: bytes) -> str:
    return "".join(LETTER[byte] for byte in data)


class Pieced:
    """A user's object with `decode` alone, written as SentencePiece decodes byte by byte."""

    def __init__(self) -> None:
        self.tokens = [*SPACED, *FALLBACK, *SPECIAL, "<added>"]

    def __len__(self) -> int:
        return len(self.tokens)

    def decode(
        self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        assert skip_special_tokens and not clean_up_tokenization_spaces
        data = b""
        for token in (self.tokens[i] for i in ids):
            if token not in SPECIAL:
                data += bytes([int(token[3:5], 16)]) if token in FALLBACK else token.encode()
        text, at = "", 0
        while at < len(data):
            for size in (1, 2, 3, 4):
                try:
                    text += data[at : at + size].decode()
                except UnicodeDecodeError:
                    continue
                at += size
                break
            else:
                text, at = text + UNKNOWN, at + 1
        return text.replace("▁", " ").removeprefix(" ")


class Spaced(PreTrainedTokenizer):  # type: ignore[misc]
    """A tokenizer in Python whose decode strips spaces on both sides."""

    def __init__(self) -> None:
        self.ids = {name: i for i, name in enumerate(["<unk>", *SPACED, *SPECIAL, "<added>"])}
        self.names = list(self.ids)
        super().__init__(bos_token=SPECIAL[0], eos_token=SPECIAL[1])

    @property
    def vocab_size(self) -> int:
        return len(self.names)

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.names[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace("▁", " ").strip()


def byte_fallback(*last: Any) -> Any:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )


LEVEL = [*map(spelt, [bytes([byte]) for byte in BYTES]), *map(spelt, MERGED)]
CHAINS: dict[str, Any] = {
    "byte level": tokenizer_of(LEVEL, decoders.ByteLevel()),
    "metaspace always": tokenizer_of(SPACED, decoders.Metaspace(prepend_scheme="always")),
    "metaspace first": tokenizer_of(SPACED, decoders.Metaspace(prepend_scheme="first")),
    "metaspace never": tokenizer_of(SPACED, decoders.Metaspace(prepend_scheme="never")),
    "byte fallback, stripped": tokenizer_of(
        [*SPACED, *FALLBACK], byte_fallback(decoders.Strip(" ", 1, 0))
    ),
    "byte fallback": tokenizer_of([*SPACED, *FALLBACK], byte_fallback()),
    "word piece": tokenizer_of(PIECES, decoders.WordPiece()),
    "word piece, not cleaned": tokenizer_of(PIECES, decoders.WordPiece(cleanup=False)),
    "end of word": tokenizer_of(["a</w>", "b", "hello</w>", "."], decoders.BPEDecoder()),
    "connectionist": tokenizer_of(["<pad>", "a", "b", "|", "."], decoders.CTC()),
    "fused": tokenizer_of([*PIECES, " ", " a"], decoders.Fuse()),
    "none": tokenizer_of(PIECES, None),
    "an object": Pieced(),
    "in Python": Spaced(),
    "bundled": AutoTokenizer.from_pretrained(BUNDLED),
}
each_chain = pytest.mark.parametrize("chain", CHAINS)


@dataclass
class Counting:
    """A tokenizer that counts the tokens it decodes, and may fail for one of them."""

    tokenizer: Any
    decoded: int = 0
    faulty: int | None = None

    def decode(self, ids: list[int], **options: Any) -> str:
        self.decoded += len(ids)
        if self.faulty in ids:
            raise KeyError(self.faulty)
        return decode(self.tokenizer, ids)


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def token(chain: str, name: str | bytes) -> int:
    """An id by what it stands for."""
    tokenizer = CHAINS[chain]
    if isinstance(tokenizer, Pieced):
        return tokenizer.tokens.index(str(name))
    if isinstance(name, bytes):
        name = f"<0x{name[0]:02X}>" if "fallback" in chain else spelt(name)
    return int(tokenizer.convert_tokens_to_ids(name))


def expected(chain: str, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """One decode of everything; in a run of bytes that turns invalid, what was whole stays."""
    tokenizer = CHAINS[chain]
    text = decode(tokenizer, [*prompt, *ids])[len(decode(tokenizer, prompt)) :]
    if not chain.startswith("byte fallback"):
        return text
    names = [n for n in tokenizer.convert_ids_to_tokens(ids) if n not in SPECIAL]
    kept = []
    for fallback, group in groupby(names, FALLBACK.__contains__):
        data = bytes(int(name[3:5], 16) for name in group) if fallback else b""
        try:
            data.decode()
        except UnicodeDecodeError as error:
            whole = data[: error.start]
            kept.append(whole.decode() + UNKNOWN * (len(data) - len(whole)))
    pieces = iter(kept)
    text = re.sub(f"{UNKNOWN}+", lambda _: next(pieces), text)
    assert next(pieces, None) is None
    return text


def written(
    tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], takes: Callable[[int], bool]
) -> tuple[str, str]:
    """(what was taken, the text in the end); `takes`: whether to take after token i."""
    stream, taken = TextStream(tokenizer, prompt), []
    for i, one in enumerate(ids):
        stream.push([one])
        if takes(i):
            taken.append(stream.take())
    stream.flush()
    taken.append(stream.take())
    return "".join(taken), stream.text


def random_ids(chain: str, pick: random.Random, length: int) -> list[int]:
    """Ids in which special ones, and long runs of one kind, are frequent."""
    size = len(CHAINS[chain])
    special = [0] if chain == "bundled" else [size - 3, size - 2]
    few = [pick.randrange(size) for _ in range(pick.randint(1, 6))]
    kinds: list[Sequence[int]] = [range(size), special, few]
    if chain == "bundled":  # its single bytes
        kinds.append(range(1, 257))
    elif set(FALLBACK) <= set(names_of(chain)):
        kinds.append([names_of(chain).index(name) for name in FALLBACK])
    ids: list[int] = []
    while len(ids) < length:
        kind = pick.choice(kinds)
        ids += [pick.choice(kind) for _ in range(pick.randint(1, 12))]
    return ids[:length]


@cache
def names_of(chain: str) -> list[str]:
    tokenizer = CHAINS[chain]
    if isinstance(tokenizer, Pieced):
        return tokenizer.tokens
    return list(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))


def whole_prompt(chain: str, pick: random.Random) -> list[int]:
    """A prompt that shows text and ends with a whole character, outside of a run of bytes."""
    while True:
        ids = random_ids(chain, pick, pick.randint(1, 20))
        shown = [i for i in ids if names_of(chain)[i] not in SPECIAL]
        inside = shown and names_of(chain)[shown[-1]] in FALLBACK
        text = decode(CHAINS[chain], ids)
        if text.strip() and not inside and not text.endswith(UNKNOWN):
            return ids
