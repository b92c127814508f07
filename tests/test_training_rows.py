"""Documents are split, packed into rows, and streamed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from draftproof.training.data.rows import Document, Rows, Stream, pack, split

SOME = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=12)


def kept_apart(found: list[Document], share: float, seed: int = 0) -> tuple[Any, Any]:
    kept, held = split(found, share, seed)
    return sorted(tuple(d.ids) for d in kept), sorted(tuple(d.ids) for d in held)


@given(SOME, st.randoms(use_true_random=False), st.sampled_from([0.05, 0.3, 0.9]))
def test_a_split_parts_the_data_whatever_its_order(ids: Any, draw: Any, share: float) -> None:
    found = [Document(each) for each in ids]
    total = sum(map(len, ids))
    if total < 2:
        with pytest.raises(ValueError, match="1 tokens to learn are too few"):
            split(found, share)
        return
    kept, held = kept_apart(found, share)
    assert kept and held
    assert sum(map(len, kept)) + sum(map(len, held)) == total
    missing = Counter(map(tuple, ids)) - Counter(kept) - Counter(held)
    for whole in missing.elements():  # cut in two
        assert len(missing) == 1 and len(held) == 1
        assert whole[-len(held[0]) :] == held[0] and whole[: -len(held[0])] in [*kept, ()]
    draw.shuffle(found)
    assert kept_apart(found, share) == (kept, held)


def test_a_split_is_of_about_the_share_and_of_the_content() -> None:
    found = [Document([i % 50, i // 50, *range(i % 7)]) for i in range(1000)]
    tokens = sum(len(document.ids) for document in found)
    kept, held = split(found)
    assert 0.04 < sum(len(document.ids) for document in held) / tokens < 0.06
    assert [d for d in found if d in kept] == kept and [d for d in found if d in held] == held
    assert kept_apart(found, 0.05, seed=1)[1] != kept_apart(found, 0.05)[1]
    twice, _ = kept_apart([*found, *found], 0.05)
    assert all(twice.count(each) == 2 for each in twice)  # equal documents stay together


@given(SOME, st.integers(1, 8))
def test_a_text_long_enough_is_held_out_where_there_is_one(ids: Any, least: int) -> None:
    found = [Document(each) for each in ids]
    if sum(map(len, ids)) < 2:
        return
    kept, held = split(found, 0.05, least=least)
    assert sum(len(d.ids) for d in [*kept, *held]) == sum(map(len, ids)) and kept and held
    if max(map(len, ids)) >= 2 * least:
        assert max(len(document.ids) for document in held) >= least


def test_a_single_document_is_cut_where_something_is_learnt() -> None:
    kept, held = split([Document(list(range(100)))])
    assert [list(d.ids) for d in (*kept, *held)] == [list(range(95)), list(range(95, 100))]
    learnt = [20 <= i < 60 for i in range(100)]
    kept, held = split([Document(list(range(100)), learnt)])
    assert held[0].ids[0] == 58 and held[0].learnt().size == 2 and kept[0].learnt().size == 38


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_of_none_or_all_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="the held-out share must lie between 0 and 1"):
        split([Document([1, 2, 3])], share)


def pieces_of(rows: Rows) -> list[tuple[list[int], list[int], list[bool]]]:
    """(ids, positions, taught) of every piece by its number; padding is checked."""
    found = {}
    for row in rows:
        for number in row["segments"].unique().tolist():
            here = row["segments"] == number
            ids, positions, learnt = (row[name][here] for name in ("ids", "positions", "taught"))
            if number < 0:
                assert not ids.any() and not learnt.any() and here.nonzero()[-1] == len(here) - 1
                assert positions.tolist() == list(range(len(positions)))
                continue
            places = here.nonzero().flatten().tolist()
            assert places == list(range(places[0], places[-1] + 1)) and number not in found
            found[number] = (ids.tolist(), positions.tolist(), learnt.tolist())
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)]


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=15),
    st.integers(2, 9),
)
def test_packing_keeps_every_token_once_and_in_order(ids: list[list[int]], length: int) -> None:
    learnt = [None if len(each) % 3 else [i % 2 == 1 for i in each] for each in ids]
    rows = pack([Document(*each) for each in zip(ids, learnt, strict=True)], length)
    longest, total = max(map(len, ids)), sum(map(len, ids))
    assert rows.ids.shape[1] == (length if total >= length else longest)
    length = rows.ids.shape[1]
    pieces = []
    for each, marks in zip(ids, learnt, strict=True):
        for at in range(0, len(each), length):
            part, mark = each[at : at + length], (marks or [True] * len(each))[at : at + length]
            pieces.append((part, list(range(len(part))), mark))
    wanted = [piece for piece in pieces if len(piece[0]) > 1 and any(piece[2][1:])] or pieces
    assert pieces_of(rows) == wanted
    assert rows.tokens == sum(len(piece[0]) for piece in wanted)
    assert len(rows) <= 2 * -(-rows.tokens // length)  # each two rows hold more than one would


def test_packing_is_tight_and_exact_about_types() -> None:
    rows = pack([Document([i + 1] * size) for i, size in enumerate([5, 3, 4, 2, 6, 4])], 8)
    assert rows.segments.tolist() == [
        [4, 4, 4, 4, 4, 4, 3, 3],
        [0, 0, 0, 0, 0, 1, 1, 1],
        [2, 2, 2, 2, 5, 5, 5, 5],
    ]
    assert rows.ids.dtype == rows.positions.dtype == rows.segments.dtype == torch.int32
    kinds = {name: value.dtype for name, value in rows[0].items()}
    assert kinds.pop("taught") == torch.bool and set(kinds.values()) == {torch.int64}
    assert set(kinds) == {"ids", "positions", "segments"}


def test_what_cannot_be_packed() -> None:
    for found in ([], [Document([])]):
        with pytest.raises(ValueError, match="there are no tokens to train on"):
            pack(found, 8)
    with pytest.raises(ValueError, match="rows of 0 tokens hold nothing"):
        pack([Document([1])], 0)
    assert pack([Document([1])], 8).tokens == 1  # there is nothing else


def test_many_documents_leave_little_room() -> None:
    found = [Document([1] * (2 + i * i % 61)) for i in range(20_000)]
    rows = pack(found, 256)
    assert rows.tokens == sum(len(document.ids) for document in found)
    assert len(rows) < 1.01 * rows.tokens / 256


def test_no_piece_sees_another() -> None:
    model = tiny.model("llama").model
    sizes = [9, 5, 7, 3, 1, 6, 12, 4]
    generator = torch.Generator().manual_seed(0)
    found = [
        Document(torch.randint(1, 97, (size,), generator=generator).tolist()) for size in sizes
    ]
    rows = pack(found, 16, minimum=1)
    ids, segments = rows.ids.long(), rows.segments
    with torch.no_grad():
        packed = model(ids, position_ids=rows.positions.long(), use_cache=False)[0]
        onward = torch.arange(ids.shape[1]).expand_as(ids)
        leaking = model(ids, position_ids=onward, use_cache=False)[0]
        apart = 0.0
        for number in range(len(found)):
            here = segments == number
            alone = model(ids[here][None], use_cache=False)[0][0]
            torch.testing.assert_close(packed[here], alone, rtol=0, atol=1e-5)
            apart = max(apart, float((leaking[here] - alone).abs().max()))
    assert apart > 0.1


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_stream_depends_on_seed_and_index_alone(
    size: int, count: int, seed: int, draw: Any
) -> None:
    rows = pack([Document([i, i]) for i in range(size)], 2)
    order = [int(row["ids"][0]) for row in Stream(rows, count, seed)]
    assert len(order) == count == len(Stream(rows, count, seed))
    for begin in range(0, count - size + 1, size):
        assert sorted(order[begin : begin + size]) == list(range(size))
    stream, places = Stream(rows, count + 5, seed), list(range(count))
    draw.shuffle(places)
    assert all(int(stream[at]["ids"][0]) == order[at] for at in places)


def test_epochs_and_seeds_differ_and_the_end_is_an_end() -> None:
    rows = pack([Document([i, i]) for i in range(50)], 2)
    order = [int(row["ids"][0]) for row in Stream(rows, 100, 0)]
    assert order[:50] != order[50:]
    assert order != [int(row["ids"][0]) for row in Stream(rows, 100, 1)]
    for index in (-1, 100):
        with pytest.raises(IndexError):
            Stream(rows, 100, 0)[index]
