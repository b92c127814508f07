"""The C interface answers "bad argument" where it would touch memory that nobody gave."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref
from functools import cache
from typing import Any

import pytest

from compiled import SHAPE, Raw, floats, ids, same_format
from draftproof import native

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")

V, SLOTS = SHAPE["vocabulary"], 32
BAD, GOOD = native.BAD_ARGUMENT, native.OK
FAR = 2**31 - 1


@cache
def model(precision: int = native.BF16) -> Raw:
    made = Raw(native.library(), precision)
    assert set(made.codes) == {GOOD}
    return made


@cache
def team() -> int:
    made: int = native.library().dp_team_new(2)
    return made


@pytest.fixture
def row() -> Iterator[int]:
    made = model().row(SLOTS)
    yield made
    native.library().dp_row_free(made)


@pytest.mark.parametrize("precision", [native.BF16, native.INT8])
@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("token", [-1, V, V + 1, FAR, -FAR - 1])
def test_tokens_outside_of_the_vocabulary(token: int, place: int, precision: int) -> None:
    made = model(precision)
    row, tokens = made.row(SLOTS), [3, 0, V - 1, 5, 7]
    code, want = made.forward(team(), row, tokens)
    assert code == GOOD
    code, logits = made.forward(team(), row, [*tokens[:place], token, *tokens[place + 1 :]])
    assert code == BAD and not any(logits)
    assert made.forward(team(), row, tokens) == (GOOD, want)
    made.library.dp_row_free(row)


SEGMENTS: dict[str, dict[str, Any]] = {
    "begins behind the first row": {"begin": 1},
    "begins before the first row": {"begin": -1, "end": 4},
    "ends behind the last row": {"end": 6},
    "ends before it begins": {"end": -1},
    "more committed tokens than rows": {"fresh": 1},
    "a negative number of them": {"fresh": -1},
    "fewer of them than none, more nodes": {"fresh": -1, "nodes": 6},
    "more nodes than rows": {"nodes": 6},
    "a negative number of nodes": {"nodes": -5, "first": -10},
    "nodes that ran before there were any": {"first": -1, "nodes": 4},
    "more nodes that ran than there are": {"first": 6, "nodes": 5, "fresh": 6},
    "fewer cached tokens than none": {"cached": -1},
    "more than the row has slots for": {"cached": SLOTS - 4},
    "far more": {"cached": FAR},
    "parents that lie elsewhere": {"parents": 1},
    "parents before the first": {"parents": -1},
    "no row": {"row": None},
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_that_do_not_fit(name: str, row: int) -> None:
    made, tokens = model(), [3, 0, 4, 5, 7]
    assert made.forward(team(), row, tokens, SLOTS - 5)[0] == GOOD  # the last that fits
    assert made.forward(team(), row, tokens, in_segment=SEGMENTS[name])[0] == BAD


PASSES: dict[str, dict[str, Any]] = {
    "a negative number of rows": {"rows": -1},
    "more rows than the segments have": {"rows": 6, "tokens": ids([1] * 6)},
    "no tokens": {"tokens": None},
    "no segments for the rows": {"segments": 0},
    "a negative number of segments": {"segments": -1},
    "no segment": {"segment": None},
    "a node that is its own parent": {"parents": ids([-1, 1, 1, 2, 3])},
    "a parent that comes later": {"parents": ids([-1, 0, 3, 2, 3])},
    "a node without a parent": {"parents": ids([-1, 0, -1, 2, 3])},
    "a root with one": {"parents": ids([0, 0, 1, 2, 3])},
    "a parent in another tree": {"parents": ids([-1, 0, 1, 2, -2])},
    "no parents": {"parents": None},
    "a wanted row behind the last": {"wanted_rows": ids([0, 1, 2, 3, 5])},
    "a wanted row before the first": {"wanted_rows": ids([-1, 1, 2, 3, 4])},
    "a row that is wanted twice": {"wanted_rows": ids([0, 1, 2, 2, 4])},
    "wanted rows that do not ascend": {"wanted_rows": ids([0, 2, 1, 3, 4])},
    "a negative number of wanted rows": {"wanted": -1},
    "more wanted rows than rows": {"wanted": 6, "wanted_rows": ids(range(6))},
    "no wanted rows": {"wanted_rows": None},
    "logits behind the last of them": {"logits_rows": ids([0, 1, 2, 3, 5])},
    "logits behind fewer of them": {"logits_rows": ids([0, -1, -1, -1, 2])},
    "logits before the first of them": {"logits_rows": ids([0, 1, 2, 3, -2])},
    "no room for logits": {"logits": None},
    "no places for logits": {"logits_rows": None},
    "a negative number of taps": {"taps": -1},
    "a tap behind the last": {"taps": 1, "tap_layers": ids([3])},
    "a tap before the first layer": {"taps": 1, "tap_layers": ids([-1])},
    "a tap that the pass does not reach": {"taps": 1, "tap_layers": ids([1]), "layers": 1},
    "taps without layers": {"taps": 1, "tap_layers": None},
    "taps without room": {"taps": 1, "tap_layers": ids([1]), "hidden": None},
    "a tapped row behind the last": {"taps": 1, "tap_layers": ids([1]), "tapped_rows": ids([0, 5])},
    "a row that is tapped twice": {"taps": 1, "tap_layers": ids([1]), "tapped_rows": ids([3, 3])},
    "no tapped rows": {"taps": 1, "tap_layers": ids([1]), "tapped_rows": None},
    "a negative number of tapped rows": {"taps": 1, "tap_layers": ids([1]), "tapped": -1},
    "more layers than there are": {"layers": 3},
    "a negative number of layers": {"layers": -1},
}


@pytest.mark.parametrize("name", PASSES)
def test_passes_that_do_not_fit(name: str, row: int) -> None:
    room = floats([0.0] * 5 * SHAPE["hidden"])
    rows = {"tapped": 2, "tapped_rows": ids([0, 3])}
    changes = {"hidden": ctypes.addressof(room), **rows, **PASSES[name]}
    made, tokens = model(), [3, 0, 4, 5, 7]
    code, logits = made.forward(team(), row, tokens, **changes)
    assert code == BAD and not any(logits) and not any(room)


def test_taps_that_fit(row: int) -> None:
    made, n = model(), 5 * SHAPE["hidden"]
    room = floats([0.0] * 3 * n)
    changes = {"taps": 3, "tap_layers": ids([2, 0, 1]), "hidden": ctypes.addressof(room)}
    changes |= {"tapped": 5, "tapped_rows": ids(range(5))}
    code, logits = made.forward(team(), row, [3, 0, 4, 5, 7], **changes)
    assert code == GOOD and any(logits) and all(any(room[i : i + n]) for i in (0, n, 2 * n))


def test_rows_of_another_model_and_models_that_are_not_whole(row: int) -> None:
    library, other = native.library(), model(native.INT8)
    assert other.forward(team(), row, [1])[0] == BAD
    bare = library.dp_model_new(byref(model().shape), same_format(2, native.BF16), b"")
    own = library.dp_row_new(bare)
    assert library.dp_row_reserve(own, SLOTS) == GOOD
    other_model, model().model = model().model, bare  # no vectors yet
    try:
        assert model().forward(team(), own, [1])[0] == BAD
    finally:
        model().model = other_model
    assert library.dp_row_copy(own, row, 1) == BAD
    library.dp_row_free(own)
    library.dp_model_free(bare)


def test_nothing_where_something_is_needed(row: int) -> None:
    library, made = native.library(), model()
    given = native.Pass()
    assert library.dp_forward(None, team(), byref(given)) == BAD
    assert library.dp_forward(made.model, None, byref(given)) == BAD
    assert library.dp_forward(made.model, team(), None) == BAD
    assert library.dp_forward(made.model, team(), byref(given)) == GOOD  # of no rows
    assert library.dp_row_new(None) is None
    assert library.dp_row_reserve(None, 1) == BAD
    assert library.dp_row_copy(row, None, 0) == BAD


@pytest.mark.parametrize(
    ("sources", "to", "code"),
    [
        ([2, 5, 9], 2, GOOD),
        ([31], 0, GOOD),
        ([], 0, GOOD),
        ([2, 32], 1, BAD),
        ([-1, 2], 0, BAD),
        ([1, 2], 2, BAD),
        ([5, 4], 2, BAD),
        ([5, 5], 2, BAD),
        ([5], -1, BAD),
        ([FAR], 3, BAD),
        ([5], FAR, BAD),
    ],
)
def test_slots_that_are_moved(sources: list[int], to: int, code: int, row: int) -> None:
    assert native.library().dp_row_move(row, ids(sources), len(sources), to) == code


def test_slots_that_are_copied_or_reserved(row: int) -> None:
    library, other = native.library(), model().row(16)
    codes = {slots: library.dp_row_copy(other, row, slots) for slots in (0, 1, 16, 17, 33, -1, FAR)}
    assert codes == {0: GOOD, 1: GOOD, 16: GOOD, 17: BAD, 33: BAD, -1: BAD, FAR: BAD}
    assert library.dp_row_copy(row, other, 17) == BAD and library.dp_row_copy(row, row, 1) == BAD
    assert (
        library.dp_row_move(row, None, 1, 0) == BAD and library.dp_row_move(row, None, -1, 0) == BAD
    )
    assert [library.dp_row_reserve(row, slots) for slots in (-1, FAR, 0, 1)] == [
        BAD,
        BAD,
        GOOD,
        GOOD,
    ]
    assert library.dp_row_bytes(model().model, -1) < 0
    library.dp_row_free(other)


def test_products_of_no_rows_or_fewer() -> None:
    made, library = model(), native.library()
    assert made.head(team(), 3)[0] == GOOD and made.head(team(), 0) == (GOOD, b"")
    assert library.dp_head(made.model, team(), None, 1, None) == BAD
    assert library.dp_head(made.model, team(), None, -1, None) == BAD
    assert library.dp_head(made.model, team(), None, FAR, None) == BAD


def test_vectors_that_no_layer_has() -> None:
    made = model()
    for layer in (-1, 2, FAR):
        assert made.vector(native.NORM_IN, layer, [1.0] * 32) == BAD
    assert made.vector(native.NORM_IN, 0, [1.0] * 31) == BAD
    assert made.vector(native.NORM_IN, 0, [1.0] * 31 + [float("nan")]) == native.NOT_FINITE
    assert made.vector(-1, 0, [1.0]) == BAD and made.vector(7, 0, [1.0]) == BAD
    # Of a wrong size nothing is read: there might be less than that.
    assert native.library().dp_model_vector(made.model, native.WINDOW, 0, None, FAR) == BAD
    assert native.library().dp_model_vector(made.model, native.NORM_IN, 0, None, -1) == BAD


@pytest.mark.parametrize("window", [-1.0, 1e10, -1e30, 3e38])
def test_windows_that_no_layer_has(window: float, row: int) -> None:
    made = model()
    _, want = made.forward(team(), row, [1, 2, 3])
    assert made.vector(native.WINDOW, 0, [window]) == BAD
    assert made.vector(native.WINDOW, 0, [float("inf")]) == native.NOT_FINITE
    assert made.forward(team(), row, [1, 2, 3]) == (GOOD, want)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": -1},
        {"layers": FAR},
        {"hidden": 0},
        {"hidden": -4},
        {"heads": 0},
        {"kv_heads": 0},
        {"kv_heads": 3},
        {"kv_heads": 8},
        {"head_dim": 0},
        {"head_dim": 24},
        {"head_dim": 1024},
        {"heads": 1 << 20, "head_dim": 512},
        {"intermediate": -1},
        {"vocabulary": 0},
        {"vocabulary": FAR},
    ],
)
def test_shapes_that_no_model_has(changes: dict[str, int]) -> None:
    library, shape = native.library(), native.Shape(**{**SHAPE, **changes})
    formats = same_format(2, native.BF16)
    assert library.dp_model_bytes(byref(shape), formats) < 0
    assert library.dp_model_new(byref(shape), formats, b"portable") is None


@pytest.mark.parametrize(
    "kinds",
    [
        {native.HEAD: -1},
        {native.HEAD: 15},
        {native.EMBEDDINGS: -2},
        {native.DOWN: 99},
        {native.Q: native.INT8},  # beside keys in bfloat16
        {native.GATE: native.INT8, native.UP: native.INT4},  # which share panels
    ],
)
def test_formats_that_cannot_be_or_not_side_by_side(kinds: dict[int, int]) -> None:
    library, shape = native.library(), native.Shape(**SHAPE)
    usual = {native.EMBEDDINGS: -1}
    formats = native.formats(2, lambda which, _: {**usual, **kinds}.get(which, native.BF16))
    assert library.dp_model_bytes(byref(shape), formats) == BAD
    assert library.dp_model_new(byref(shape), formats, b"portable") is None
    assert library.dp_model_bytes(byref(shape), None) == BAD


def test_kernels_teams_and_rates_that_there_are_not() -> None:
    library, shape = native.library(), native.Shape(**SHAPE)
    assert library.dp_model_new(byref(shape), same_format(2, native.BF16), b"abacus") is None
    assert library.dp_team_new(FAR) is None
    for size, rows in ((-1, 1), (0, 1), (1 << 20, 0), (1 << 20, -1), (1 << 20, 33)):
        assert library.dp_read_rate(team(), size, rows) == 0.0
    assert library.dp_tile_rate(team(), native.INT8, -1) == 0.0
    row, found, scaled, mass = floats([1.0, 2.0]), ids([0]), ctypes.c_double(), ctypes.c_double()
    for n, k in ((2, 0), (2, -1), (0, 1), (-1, 1)):
        out = found, byref(scaled), byref(mass)
        assert library.dp_race(row, n, 1.0, 0, 0, 0, k, *out) == -1
    assert library.dp_model_matrix(model().model, native.Q, 0, None, 9, 64, 32) == BAD
