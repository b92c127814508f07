"""A stream of text at its edges: stop strings, faults, interrupts and threads."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import (
    CHAINS,
    UNKNOWN,
    Counting,
    decode,
    each_chain,
    expected,
    names_of,
    random_ids,
    token,
    whole_prompt,
)
from draftproof.text import TextStream


def cut_at(text: str, stop: Sequence[str], floor: int) -> str | None:
    """Slow and obvious: the text before the stop string that is complete first."""
    found = [(at + len(s), at) for s in stop if (at := text.find(s, floor)) >= 0]
    return text[: min(found)[1]] if found else None


@each_chain
@settings(max_examples=25)
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
    stream, done = TextStream(CHAINS[chain], prompt), list[bool]()

    def take() -> None:
        while not done:
            stream.take()

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
