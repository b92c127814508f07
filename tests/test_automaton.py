"""The suffix automaton: it takes back, and the compiled one does what the one in Python does."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import native
from draftproof.drafting.compiled import CompiledAutomaton, automaton
from draftproof.drafting.following import Following

compiled = pytest.mark.skipif(native.found() is None, reason="the kernels were not built")
TEXTS = st.lists(st.lists(st.integers(-1, 2), max_size=12), max_size=8)


def state_of(made: Following) -> Any:
    return [list(each.items()) for each in made.next], made.link, made.length, made.count, made.ends


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8), st.data())
def test_an_automaton_that_took_back_is_a_fresh_one(
    parts: list[list[int]], data: st.DataObject
) -> None:
    made = Following()
    for part in parts:
        for token in part:
            made.append(token)
        for _ in range(data.draw(st.integers(0, made.size))):
            made.undo()
        fresh = Following()
        for token in made.tokens:
            fresh.append(token)
        assert state_of(made) == state_of(fresh)


@compiled
@given(TEXTS, st.lists(st.integers(-1, 2), max_size=20), st.data())
def test_drafts_are_alike(parts: list[list[int]], other: list[int], data: st.DataObject) -> None:
    """With texts of others beside, while the own one grows and is taken back."""
    sides = [[made() for _ in range(3)] for made in (Following, automaton)]
    for _, newer, older in sides:
        newer.extend(other)
        older.extend(other[::-1])
    size = 0
    for part in parts:
        kept, count = data.draw(st.integers(0, size)), data.draw(st.integers(0, 2))
        shape = data.draw(st.tuples(*[st.integers(0, 5)] * 4))
        asked = kept, [abs(token) for token in part], count, shape
        plain, fast = (
            own.draft(kept, asked[1], [newer, older][:count], *shape, 0.1)
            for own, newer, older in sides
        )
        assert plain == fast
        size = kept + len(part)
        assert [own.size for own, *_ in sides] == [size, size]


def alike(plain: Following, fast: CompiledAutomaton, query: list[int]) -> None:
    """Both answer alike whatever they are asked."""
    assert plain.size == fast.size and plain.repeated() == fast.repeated()
    state, length = plain.match(query)
    assert fast.match(query) == (state, length)
    for at in (0, state, plain.repeated()[0], len(plain.next) - 1):
        for nodes, depth, least in ((5, 3, 0.1), (200, 9, 0.0), (0, 4, 0.1), (7, 0, 0.5)):
            asked = at, nodes, depth, least
            assert plain.likeliest(*asked) == fast.likeliest(*asked)


@compiled
@given(TEXTS, st.lists(st.integers(0, 3), max_size=9), st.data())
def test_the_compiled_one_answers_alike(
    parts: list[list[int]], query: list[int], data: st.DataObject
) -> None:
    plain, fast = Following(), automaton()
    assert isinstance(fast, CompiledAutomaton)
    for part in parts:
        for made in (plain, fast):
            made.extend(part)
        taken = data.draw(st.integers(0, plain.size))
        for made in (plain, fast):
            made.undo(taken)
        alike(plain, fast, query + plain.tokens[-3:])


@compiled
def test_the_compiled_one_answers_alike_in_a_long_text_of_many_words() -> None:
    """States with many edges are looked up by another way."""
    random = Random(1)
    text = [int(random.expovariate(1 / 300)) for _ in range(20_000)]
    plain, fast = Following(), automaton()
    assert isinstance(fast, CompiledAutomaton)
    for end in range(0, len(text), 500):
        for made in (plain, fast):
            made.extend(text[end : end + 500])
            made.undo(37)
        alike(plain, fast, text[end : end + 60])


def test_what_follows_is_ranked_by_how_often_it_followed() -> None:
    made = automaton()
    made.extend([1, 2, 3, 1, 2, 3, 1, 2, 4, -1, 2, 9, 1, 2])
    state, length = made.repeated()
    assert length == 2  # "1 2" stands there three times before, and "2" four times
    tokens, parents, shares = made.likeliest(state, 4, 2, 0.1)
    assert (tokens[:2], parents[:2]) == ([3, 1], [0, 1])
    assert shares[0] == pytest.approx(2 / 3) and 4 in tokens and -1 not in tokens


@compiled
def test_bad_arguments_touch_nothing() -> None:
    library: Any = native.library()
    made = library.dp_automaton_new()
    ids, length = (ctypes.c_int32 * 3)(1, 2, 1), ctypes.c_int32()
    shares = (ctypes.c_double * 3)()
    bad = native.BAD_ARGUMENT
    assert library.dp_automaton_append(made, ids, 3) == native.OK
    assert library.dp_automaton_append(None, ids, 3) == bad
    assert library.dp_automaton_append(made, None, 1) == bad
    assert library.dp_automaton_append(made, ids, -1) == bad
    assert library.dp_automaton_append(made, ids, 1 << 30) == bad
    assert library.dp_automaton_undo(made, 4) == bad == library.dp_automaton_undo(made, -1)
    assert library.dp_automaton_repeated(made, None) == bad
    assert library.dp_automaton_match(made, None, 2, ctypes.byref(length)) == bad
    for state in (-1, 99):
        asked = made, state, 3, 3, 0.1, ids, ids, shares
        assert library.dp_automaton_likeliest(*asked) == bad
    assert library.dp_automaton_likeliest(made, 0, -1, 3, 0.1, ids, ids, shares) == bad
    for own, kept, count, other, context in (
        (None, 0, 1, None, 4),
        (made, 4, 0, None, 4),
        (made, -1, 0, None, 4),
        (made, 3, -1, None, 4),
        (made, 3, 0, made, 4),
        (made, 3, 0, None, -1),
    ):
        asked = own, kept, ids, count, other, None, context, 1, 3, 3, 0.1, ids, ids, shares
        assert library.dp_automaton_draft(*asked) == bad
    assert library.dp_automaton_repeated(made, ctypes.byref(length)) >= 0 and length.value == 1
    library.dp_automaton_free(made)
    library.dp_automaton_free(None)


@compiled
def test_it_is_freed_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = native.library()
    freed = list[int]()
    real = library.dp_automaton_free
    monkeypatch.setattr(library, "dp_automaton_free", lambda at: (freed.append(at), real(at)))
    made = automaton()
    made.extend([1, 2])
    del made
    gc.collect()
    assert len(freed) == 1


SHARED = """
import random, sys, threading
import draftproof as dp
from draftproof.request import Request

drafter = dp.SuffixAutomaton(corpus=400_000)
drafter.bind(None, None)
ended = threading.Event()


def request(key, tokens, seed):
    rng = random.Random(seed)
    made = Request(key, [1, 2, 3], dp.SamplingParams(max_tokens=100_000), seed=0)
    drafter.propose([made])
    made.tokens += [rng.randrange(50) for _ in range(tokens)]
    return made


def write():
    for key in range(12):
        drafter.release(request(key, 20_000, key))
    ended.set()


threading.Thread(target=write).start()
key = 100
while not ended.is_set():
    drafter.propose([request(key, 64, key)])
    key += 1
"""


@compiled
def test_two_threads_may_look_up_what_either_wrote() -> None:
    """As those of two LLMs with one drafter: one adds to the text that the other one reads."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
