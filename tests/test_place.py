"""The place of a text in another one: kept through insertions, deletions and changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftproof.drafting.place import Place

SOON = 8  # tokens behind an edit in which the place is found again
TEXTS = st.lists(st.integers(0, 11), min_size=60, max_size=120)


def unambiguous(text: Sequence[int]) -> bool:
    """Whether so many tokens stand in one place of it alone: else nobody can tell them apart."""
    windows = [tuple(text[at : at + SOON]) for at in range(len(text) - SOON + 1)]
    return len(windows) == len(set(windows))


def edited(text: list[int], begin: int, kind: str, fresh: list[int]) -> tuple[list[int], int, int]:
    """The text behind an edit, where the edit ends in it, and where that is in the other one."""
    gone = 0 if kind == "insertion" else len(fresh)
    come = [] if kind == "deletion" else fresh
    return text[:begin] + come + text[begin + gone :], begin + len(come), begin + gone


@given(
    text=TEXTS,
    begin=st.integers(0, 30),
    kind=st.sampled_from(["insertion", "deletion", "change"]),
    fresh=st.lists(st.integers(0, 14), min_size=1, max_size=20),
    steps=st.lists(st.integers(1, 9), min_size=1),
)
def test_it_is_found_again_behind_an_edit(
    text: list[int], begin: int, kind: str, fresh: list[int], steps: list[int]
) -> None:
    """Fresh tokens are those of the text too, and the text is read in steps of any size."""
    assume(unambiguous(text))
    written, end, there = edited(text, begin, kind, fresh)
    place, read = Place(text), 0
    while read < len(written):
        size = min(read + steps[read % len(steps)], len(written))
        place.move(written[:size], read)
        read = size
        if read - end >= SOON:
            assert place.at == there + read - end and place.run >= SOON
            assert not place.since


@given(text=TEXTS, edits=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6))
def test_several_edits(text: list[int], edits: list[tuple[int, bool]]) -> None:
    """Each behind at least as many tokens as it takes to be found again."""
    assume(unambiguous(text))
    written, at = list[int](), 0
    for size, inserts in edits:
        written += text[at : at + SOON]
        at += SOON + (0 if inserts else size)
        written += [99] * size if inserts else []
    written += text[at : at + SOON]
    assume(at + SOON < len(text))
    place = Place(text)
    place.move(written, 0)
    assert place.at == at + SOON


@given(
    text=st.lists(st.integers(0, 5), max_size=40), other=st.lists(st.integers(0, 5), max_size=40)
)
def test_whatever_is_written_it_stays_within(text: list[int], other: list[int]) -> None:
    place = Place(other)
    for end in range(1, len(text) + 1):
        place.move(text[:end], end - 1)
        assert 0 <= place.at <= len(other) and 0 <= place.edit <= place.changed <= len(other)
        assert other[max(0, place.at - place.run) : place.at] == text[end - place.run : end]


@pytest.mark.parametrize("far", [3, 30])
def test_of_alike_places_it_takes_the_nearest(far: int) -> None:
    """A line that stands everywhere is no reason to leave the place."""
    line = [1, 2, 3, 4]
    text = [token for number in range(40) for token in (100 + number, *line)]
    cut = 5 * far + 1
    place = Place(text)
    place.move([*text[:cut], 77, *line[1:3]], 0)  # the first token of a line is another one
    assert place.at == cut + 3
    place.move([*text[:cut], 77, *line[1:], 500, *line[:2]], 3 + cut)  # and so is that behind it
    assert place.at == cut + 7
