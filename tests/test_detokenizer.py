"""One incremental decoder for all: pieces, whole and one decode agree under every decoder chain."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import (
    CHAINS,
    SPECIAL,
    UNKNOWN,
    Counting,
    decode,
    each_chain,
    expected,
    names_of,
    random_ids,
    spelt,
    token,
    whole_prompt,
    written,
)
from draftproof.detokenizer import WAIT
from draftproof.text import TextStream


@each_chain
@settings(max_examples=40)
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
