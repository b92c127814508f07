"""Damage done to code, and how it is counted what a model mended."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.bundled import corpus
from draftproof.bundled.damaged import KINDS, Damaged, Mended, damage, held_out, piece

CLEAN = 'def area(width, height):\n    """Of a square."""\n    return width * height\n'


def scored(pair: Damaged, output: str) -> Mended:
    found = Mended()
    found.add(pair, output)
    return found


@given(st.integers(0, 10_000), st.integers(0, 6))
def test_damage_is_where_it_says_and_is_counted(seed: int, count: int) -> None:
    pair = damage(CLEAN, random.Random(seed), count)
    assert pair == damage(CLEAN, random.Random(seed), count)
    assert len(pair.slips) == count and (pair.text == CLEAN) == (not count)
    text = pair.clean
    for begin, end, instead in reversed(pair.slips):
        assert text[begin:end] != instead
        text = text[:begin] + instead + text[end:]
    assert text == pair.text
    right, left = scored(pair, CLEAN), scored(pair, pair.text)
    assert (right.slips, right.mended, right.kept, right.whole) == (count, count, right.places, 1)
    assert left.mended == 0 and left.whole == (not count)
    assert left.kept_share > 0.9  # a copy keeps what was whole; repeats may be aligned otherwise


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_slip_changes_the_text_or_finds_no_place(kind: object) -> None:
    found = [kind(CLEAN, random.Random(seed)) for seed in range(50)]  # type: ignore[operator]
    slips = [slip for slip in found if slip]
    assert slips and all(CLEAN[begin:end] != instead for begin, end, instead in slips)
    assert kind("\n", random.Random(0)) is None  # type: ignore[operator]


def test_what_is_counted() -> None:
    pair = Damaged("return width * height", "reutrn width * heigt", ((2, 4, "ut"), (19, 20, "")))
    found = scored(pair, "return width + heigt")
    assert (found.slips, found.mended) == (2, 1)
    assert (found.places, found.kept) == (2, 1)  # width and *
    found.add(pair, pair.clean)
    assert (found.texts, found.whole) == (2, 1)
    assert (found.mended_share, found.kept_share, found.whole_share) == (0.75, 0.75, 0.5)
    nothing = scored(pair, "")
    assert (nothing.mended, nothing.kept) == (0, 0)
    assert Mended().mended_share == 0.0


def test_pieces_are_whole_lines_of_the_sources() -> None:
    sources = ["x = 1\n", "    first = 1\n    second = first\n    third = second\n" * 9]
    text = piece(sources, [len(sources[0]), sum(map(len, sources))], 60, random.Random(1))
    assert 30 < len(text) <= 60
    assert set(text.splitlines()) <= {"first = 1", "second = first", "third = second"}


def test_held_out_pieces_come_from_modules_that_were_not_trained_on() -> None:
    pairs = held_out(8, fits=lambda pair: len(pair.text) < 200)
    assert pairs == held_out(8, fits=lambda pair: len(pair.text) < 200)
    assert all(len(pair.text) < 200 for pair in pairs) and len({pair.clean for pair in pairs}) == 8
    lines = {
        line.strip()
        for name, text in corpus.modules(only_held_out=True)
        for line in text.expandtabs(4).splitlines()
    }
    assert all(line.strip() in lines for pair in pairs for line in pair.clean.splitlines())
