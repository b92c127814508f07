"""Room of rows: all that a text will likely need at once, kept for the next, let go in need."""

from __future__ import annotations

from random import Random

import pytest

import draftproof as dp
from draftproof.runners import rows
from draftproof.runners.rows import FIRST_SLOTS, Rows
from draftproof.writing import NODES, OPEN
from remembering import draft, llm, some

PROMPT = some(Random(1), 30)


def sizes(made: dp.LLM) -> set[int]:
    return {*made.runner.held.sizes().values()}


@pytest.mark.parametrize(
    "speculate", [None, pytest.param("draft", marks=pytest.mark.slow), "ngram"]
)
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_text_that_is_written_never_moves(
    speculate: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = dp.DraftModel(draft(), 3) if speculate == "draft" else speculate
    with llm(speculate=how, max_batch=4) as made:
        stores = [store.held for store in made.memory.stores]
        grown: list[int] = []
        for held in stores:
            reserve = held.reserve  # type: ignore[attr-defined]

            def spy(key: int, slots: int, held: Rows = held, reserve: object = reserve) -> int:
                before = held.slots_of(key)
                row: int = reserve(key, slots)  # type: ignore[operator]
                grown.extend([before] if before not in (0, held.slots_of(key)) else [])
                return row

            monkeypatch.setattr(held, "reserve", spy)
        params = dp.SamplingParams(max_tokens=500, ignore_eos=True, n=count, temperature=1.0)
        made.generate([PROMPT, PROMPT[3:]], params)
        assert not grown
        for held in stores:
            longest = {size for size in held.sizes().values() if size}
            assert longest and longest <= {-(-(530 + NODES) // FIRST_SLOTS) * FIRST_SLOTS}


def test_room_for_an_open_text_is_bounded() -> None:
    with llm(max_batch=1, max_length=2000) as made:
        (request,) = made.submit(PROMPT, dp.SamplingParams(max_tokens=None, ignore_eos=True))
        made.engine.step()
        assert request.likely <= made.runner.held.slots_of(request.key) < 30 + OPEN + NODES + 256


def written(made: dp.LLM, length: int) -> None:
    made.generate([some(Random(length), length)], dp.SamplingParams(max_tokens=2))


def test_the_room_of_a_long_text_is_for_the_next_one() -> None:
    with llm(max_batch=4) as made:
        written(made, 1500)
        before = made.runner.held.sizes()
        assert max(before.values()) >= 1500
        written(made, 1400)
        assert made.runner.held.sizes() == before  # it took the same
        written(made, 20)
        assert sorted(made.runner.held.sizes().values()) == sorted(before.values())
        made.generate([some(Random(2), 1450), PROMPT], dp.SamplingParams(max_tokens=2))
        assert sorted(made.runner.held.sizes().values())[-2:] == [FIRST_SLOTS, *before.values()]


def test_room_is_let_go_where_it_is_much_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with llm(max_batch=4) as made:
        held = made.runner.held
        free = int(1000 * held.slot_bytes / rows.SPARE)
        monkeypatch.setattr(held, "free_bytes", lambda: free)
        written(made, 700)
        assert max(sizes(made)) >= 700
        written(made, 1500)
        assert max(sizes(made)) < 1500


def test_what_holds_nothing_makes_way_before_what_is_kept_for_later() -> None:
    with llm(max_batch=4, prefix_cache=True) as made:
        held = made.runner.held
        written(made, 300)
        made.generate([some(Random(9), 400)], dp.SamplingParams(max_tokens=2, prompt_logprobs=0))
        parked = dict(held._parked)
        idle = [row for row in held.sizes() if row not in parked]
        assert parked
        for _ in idle:
            assert held.shed()
            assert held._parked == parked
        assert held.shed() and len(held._parked) == len(parked) - 1
