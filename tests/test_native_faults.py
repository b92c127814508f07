"""Every allocation of the kernels refused, one after the other: what fails, fails in one piece."""

from __future__ import annotations

import pytest

from compiled import Raw
from draftproof import native
from refusals import library, refusals

pytestmark = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")


@pytest.mark.parametrize("precision", [native.BF16, native.INT8])
def test_a_model_that_cannot_be_made(precision: int) -> None:
    team = library().dp_team_new(1)
    want, codes = Raw(library(), precision).head(team, 3), set()
    nothing = 0

    def attempt(_: None) -> Raw | None:
        try:
            return Raw(library(), precision)
        except MemoryError:
            return None

    for _, made in refusals(attempt):
        if made is None:
            nothing += 1
        else:  # a matrix, a vector or a bias was refused, or nothing
            codes |= set(made.codes)
            assert made.head(team, 3) == want or made.codes[0] == native.NO_MEMORY
            library().dp_model_free(made.model)
    assert nothing > 2 and codes == {native.OK, native.NO_MEMORY}
    library().dp_team_free(team)


def test_a_team_that_cannot_be_made() -> None:
    made = [team for _, team in refusals(lambda _: library().dp_team_new(4))]
    assert len(made) > 10 and [bool(team) for team in made].count(True) == 2
    for team in filter(None, made):
        assert library().dp_tile_rate(team, native.BF16, 4) > 0
        library().dp_team_free(team)


@pytest.mark.parametrize("precision", [native.BF16, native.INT8])
def test_a_pass_that_cannot_be_made(precision: int) -> None:
    """A model with room for small passes, and a large one that is refused: both work afterwards."""
    one, many = library().dp_team_new(1), library().dp_team_new(2)
    small, large = [3, 1, 4], list(range(1, 25))
    want: list[tuple[int, bytes]] = []

    def prepare() -> tuple[Raw, int]:
        made = Raw(library(), precision)
        return made, made.row(64)

    def passes(made: Raw, row: int) -> list[tuple[int, bytes]]:
        both = made.forward(one, row, small), made.forward(many, row, large)
        return [*both, made.forward(one, row, [7], len(large)), made.head(many, 30)]

    def attempt(given: tuple[Raw, int]) -> tuple[int, bytes]:
        made, row = given
        return made.forward(many, row, large)

    def warm() -> tuple[Raw, int]:
        made, row = prepare()
        assert made.forward(one, row, small) == want[0]
        return made, row

    want += passes(*prepare())
    assert {code for code, _ in want} == {native.OK}
    for before in (prepare, warm):
        codes = []
        for (made, row), (code, logits) in refusals(attempt, before):
            codes.append(code)
            assert (code, logits) == want[1] or code == native.NO_MEMORY
            assert passes(made, row) == want
            library().dp_row_free(row)
            library().dp_model_free(made.model)
        assert codes.count(native.NO_MEMORY) > 20 and set(codes) == {native.OK, native.NO_MEMORY}


def test_a_row_that_cannot_grow() -> None:
    team, made = library().dp_team_new(1), Raw(library())
    prompt = list(range(1, 11))

    def prepare() -> int:
        row = made.row(16)
        assert made.forward(team, row, prompt)[0] == native.OK
        return row

    want, codes = made.forward(team, prepare(), [5, 6], 10), []
    for row, code in refusals(lambda row: library().dp_row_reserve(row, 200), prepare):
        codes.append(code)
        assert made.forward(team, row, [5, 6], 10) == want  # what it held, it still holds
        assert made.forward(team, row, [5], 16)[0] == (native.BAD_ARGUMENT if code else native.OK)
        assert library().dp_row_reserve(row, 200) == native.OK
        assert made.forward(team, row, [5, 6], 10) == want
        library().dp_row_free(row)
    assert codes.count(native.NO_MEMORY) == 4 and codes.count(native.OK) == 2


def test_what_is_twice_as_large_and_refused_is_made_as_large_as_needed() -> None:
    """Room for 30 rows grows to 60 for 31; where 60 are refused, 31 are tried."""
    team = library().dp_team_new(1)

    def attempt(given: tuple[Raw, int]) -> int:
        return given[0].forward(team, given[1], [1] * 31)[0]

    def prepare() -> tuple[Raw, int]:
        made = Raw(library())
        row = made.row(64)
        assert made.forward(team, row, [1] * 30)[0] == native.OK
        return made, row

    codes = [code for _, code in refusals(attempt, prepare)]
    assert codes.count(native.OK) >= 12  # ten arrays, and both times where nothing was refused


def test_measures_that_cannot_be_taken() -> None:
    team = library().dp_team_new(2)
    for measure in (
        lambda _: library().dp_read_rate(team, 1 << 20, 1),
        lambda _: library().dp_tile_rate(team, native.INT8, 4),
    ):
        rates = [rate for _, rate in refusals(measure)]
        assert 0.0 in rates and all(rate >= 0.0 for rate in rates) and rates[-1] > 0.0
