"""One incremental decoder for all: pieces, whole and one decode agree under every decoder chain."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from draftproof.detokenizer import WAIT
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
BUNDLED = Path(__file__).parent.parent / "src/draftproof/demo/models/target"


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


@each_chain
@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_pieces_whole_and_one_decode_are_equal(chain: str, seed: int) -> None:
    pick = random.Random(seed)
    prompt, ids = whole_prompt(chain, pick), random_ids(chain, pick, pick.choice([3, 12, 40, 150]))
    text = expected(chain, prompt, ids)
    tokenizer, often = CHAINS[chain], pick.random()
    assert written(tokenizer, prompt, ids, lambda i: False) == (text, text)
    assert written(tokenizer, prompt, ids, lambda i: True) == (text, text)
    assert written(tokenizer, prompt, ids, lambda i: pick.random() < often) == (text, text)


@each_chain
@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30))
def test_tokens_pushed_together_make_the_same_text(chain: str, seed: int) -> None:
    pick = random.Random(seed)
    prompt, ids = whole_prompt(chain, pick), random_ids(chain, pick, 100)
    stream, at = TextStream(CHAINS[chain], prompt), 0
    while at < len(ids):
        end = at + pick.choice([1, 2, 3, 5, 20])
        stream.push(ids[at:end])
        stream.take()
        at = end
    stream.flush()
    assert stream.text == expected(chain, prompt, ids)


@pytest.mark.parametrize("chain", [name for name in CHAINS if name != "bundled"])
def test_a_space_behind_special_tokens_is_kept(chain: str) -> None:
    """In the output and in the prompt, however many there are."""
    tokenizer, names = CHAINS[chain], names_of(chain)
    shown = [i for i, name in enumerate(names) if name not in SPECIAL]
    special = [names.index(name) for name in SPECIAL]
    for many in (1, 7, 50):
        for one in shown:
            prompt, ids = [shown[4], *special * many], [one, *special * many, one, shown[3]]
            text = decode(tokenizer, prompt + ids)[len(decode(tokenizer, prompt)) :]
            if not text.startswith(UNKNOWN):
                assert written(tokenizer, prompt, ids, lambda i: True) == (text, text)
                assert written(tokenizer, prompt, ids, lambda i: False) == (text, text)


@pytest.mark.parametrize("chain", ["metaspace always", "byte fallback, stripped"])
def test_a_text_behind_special_tokens_alone_begins_as_one_decode_does(chain: str) -> None:
    tokenizer = CHAINS[chain]
    special, hello = token(chain, "<s>"), token(chain, "▁hello")
    assert written(tokenizer, [special] * 9, [special, hello, hello], lambda i: True) == (
        "hello hello",
        "hello hello",
    )


@each_chain
def test_a_prompt_that_ends_inside_a_character_is_completed(chain: str) -> None:
    """The character belongs to the output that makes it whole; a broken one to the prompt."""
    names, tokenizer = names_of(chain), CHAINS[chain]
    if "<0xF0>" in names:
        before, inside = ["a", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>"], ["<0x98>", "<0x80>"]
    elif chain in ("byte level", "bundled"):
        before, inside = [*map(spelt, [b"A", b"\xf0", b"\x9f"])], [*map(spelt, [b"\x98", b"\x80"])]
    else:
        return  # no halves
    prompt, ends = [names.index(n) for n in before], [names.index(n) for n in inside]
    dot = names.index(".") if "." in names else names.index("A")
    for takes in (True, False):
        assert written(tokenizer, prompt, [*ends, dot], lambda i, t=takes: t)[1] == (
            "\U0001f600" + names[dot]
        )
        assert written(tokenizer, prompt, [dot], lambda i, t=takes: t) == (names[dot],) * 2


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        ("byte level", b"\xef\xbf\xbd"),
        ("byte level", b"\x80"),
        ("byte level", b"a\xe2\x82"),
        ("byte level", b"\xac\xe2\x82"),
        ("byte level", "<s>"),
        ("bundled", b"\x80"),
        ("byte fallback", b"\x80"),
        ("byte fallback, stripped", b"\xf0"),
        ("an object", "<0x80>"),
        ("metaspace always", "</s>"),
        ("metaspace always", "▁"),
        ("word piece", "##ing"),
        ("in Python", "▁"),
    ],
)
@pytest.mark.parametrize("together", [1, 5, 1200])
def test_work_is_linear_and_waiting_bounded(chain: str, name: str | bytes, together: int) -> None:
    if chain == "bundled":
        assert isinstance(name, bytes)
        name = spelt(name)
    one, tokenizer = token(chain, name), Counting(CHAINS[chain])
    stream, text = TextStream(tokenizer, whole_prompt(chain, random.Random(0))), ""
    for i in range(0, 1200, together):
        stream.push([one] * together)
        text += stream.take()
        half = UNKNOWN in decode(CHAINS[chain], [one])
        if half:  # every token shows something, at the latest when three more have come
            assert len(text) >= i + together - (WAIT - 1)
    stream.flush()
    assert tokenizer.decoded < 200 * 1200 if chain == "in Python" else 25 * 1200


@each_chain
@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30))
def test_what_is_complete_is_shown(chain: str, seed: int) -> None:
    """Of tokens that show something, only the last ones may still wait."""
    pick = random.Random(seed)
    prompt, ids = whole_prompt(chain, pick), random_ids(chain, pick, 40)
    special = [i for i, name in enumerate(names_of(chain)) if name in SPECIAL]
    ids = [one for one in ids if one not in (special or [0])]
    stream, shown = TextStream(CHAINS[chain], prompt), ""
    for i, one in enumerate(ids):
        stream.push([one])
        shown += stream.take()
        older = expected(chain, prompt, ids[: max(i + 2 - WAIT, 0)])
        assert len(shown) >= len(older.rstrip(UNKNOWN))


def cut_at(text: str, stop: Sequence[str], floor: int) -> str | None:
    """Slow and obvious: the text before the stop string that is complete first."""
    found = [(at + len(s), at) for s in stop if (at := text.find(s, floor)) >= 0]
    return text[: min(found)[1]] if found else None


@each_chain
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30))
def test_stop_strings_are_found_in_the_text_that_is_returned(chain: str, seed: int) -> None:
    pick = random.Random(seed)
    prompt, ids = whole_prompt(chain, pick), random_ids(chain, pick, pick.choice([4, 12, 60]))
    text, floor_at = expected(chain, prompt, ids), pick.choice([0, 0, 3])
    begins = [pick.randrange(len(text)) for _ in range(3) if text]
    stop = [text[at : at + pick.randint(1, 5)] for at in begins] + pick.choice([[], ["zz"]])
    plain = TextStream(CHAINS[chain], prompt)
    plain.push(ids[:floor_at])
    whole = cut_at(text, stop, len(plain.take()))
    for takes in (True, False):
        stream, taken = TextStream(CHAINS[chain], prompt, stop), []
        for i, one in enumerate(ids):
            stream.push([one], stops=i >= floor_at)
            taken += [stream.take()] if takes else []
            if stream.stopped():
                break
        stream.flush()
        taken.append(stream.take())
        assert stream.stopped() == (whole is not None)
        assert stream.text == "".join(taken) == (text if whole is None else whole)


@pytest.mark.parametrize("stop", ["a", UNKNOWN])
def test_a_stop_string_beside_half_a_character_ends_the_text(stop: str) -> None:
    stream = TextStream(CHAINS["byte level"], [token("byte level", b" hello")], [stop])
    stream.push([token("byte level", b"A"), token("byte level", b"a\xe2\x82")])
    assert stream.stopped() == (stop == "a")
    stream.flush()  # the half appears as what it is, and that was asked for
    assert stream.stopped()
    assert stream.text == ("A" if stop == "a" else "Aa")


@each_chain
@pytest.mark.parametrize("stop", [(), ("nowhere",)])
@pytest.mark.parametrize("takes", [True, False])
def test_a_decode_that_raises_leaves_the_text_before_it(
    chain: str, stop: Sequence[str], takes: bool
) -> None:
    names = names_of(chain)
    good = next(i for i, name in enumerate(names) if decode(CHAINS[chain], [5, i, 5]) != "")
    tokenizer = Counting(CHAINS[chain], faulty=4)
    stream = TextStream(tokenizer, [5, 5], stop)
    raised, taken = [], ""
    for one in [good] * 9 + [4] + [good] * 9:
        try:
            stream.push([one])
        except KeyError as error:
            raised.append(error)
        taken += stream.take() if takes else ""
    try:
        stream.flush()
    except KeyError as error:
        raised.append(error)
    taken += stream.take()
    stream.flush()
    assert len(raised) == 1
    assert stream.text == taken
    before = decode(CHAINS[chain], [5, 5] + [good] * 9)[len(decode(CHAINS[chain], [5, 5])) :]
    assert taken == before


def test_a_prompt_that_cannot_be_decoded_is_the_outputs_fault() -> None:
    stream = TextStream(Counting(CHAINS["fused"], faulty=4), [4])
    stream.push([5])
    assert stream.take() == ""
    with pytest.raises(KeyError):
        stream.flush()
    stream.flush()
    assert stream.text == ""


def test_an_interrupt_loses_nothing() -> None:
    """Between two steps the user's program goes on with the same stream."""

    class Interrupted(Counting):
        def decode(self, ids: list[int], **options: Any) -> str:
            self.decoded += 1
            if self.decoded in (2, 5):
                raise KeyboardInterrupt
            return decode(self.tokenizer, ids)

    prompt, ids = [token("fused", "a")], [token("fused", " a")] * 9
    stream, taken = TextStream(Interrupted(CHAINS["fused"]), prompt), ""
    for one in ids:
        stream.push([one])
        try:
            taken += stream.take()
        except KeyboardInterrupt:
            continue
    stream.flush()
    assert taken + stream.take() == stream.text == " a" * 9


def test_one_thread_pushes_and_others_take() -> None:
    chain = "byte fallback, stripped"
    prompt, ids = whole_prompt(chain, random.Random(1)), random_ids(chain, random.Random(2), 2000)
    stream, taken, done = TextStream(CHAINS[chain], prompt), list[tuple[int, str]](), []

    def take() -> None:
        while not done:
            stream.take()
            taken.append((len(stream.text), ""))

    takers = [Thread(target=take) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for taker in takers:
            taker.start()
        for one in ids:
            stream.push([one])
        stream.flush()
    finally:
        done.append(True)
        for taker in takers:
            taker.join()
        sys.setswitchinterval(interval)
    assert stream.text == expected(chain, prompt, ids)


def test_what_nobody_takes_is_not_decoded() -> None:
    tokenizer = Counting(CHAINS["bundled"])
    stream = TextStream(tokenizer, [300, 301])
    for one in range(300, 1300):
        stream.push([one])
    assert tokenizer.decoded == 0
    stream.flush()
    assert tokenizer.decoded < 3000
