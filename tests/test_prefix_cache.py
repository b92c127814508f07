"""What an earlier request cached is read again, and nobody can tell from the output."""

from __future__ import annotations

from random import Random

import pytest

import draftproof as dp
from remembering import (
    DEEPEST,
    METHODS,
    books_are_right,
    draft,
    llm,
    model,
    params,
    reading,
    runners,
    some,
    tokens_of,
)

KINDS = ["llama", "qwen3"]  # full attention, and a window of 6 in every other layer


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KINDS)
def test_turns_are_what_they_are_without_the_cache(
    name: str, method: str, temperature: float
) -> None:
    rng = Random(0)
    drafting = METHODS[method](name)
    with (
        llm(name) as plain,
        llm(name, speculate=drafting, prefix_cache=True, max_batch=1) as cached,
    ):
        read, tokens = reading(cached), some(rng, 30)
        for turn in range(4):
            del read[:]
            written = tokens_of(cached, tokens, temperature=temperature)
            assert written == tokens_of(plain, tokens, temperature=temperature)
            assert sum(read) == 29 if turn == 0 else 0 < sum(read) <= 6 + DEEPEST
            for runner in runners(cached):
                books_are_right(runner, [])
                assert len(runner._cache._parked) == 1  # the draft remembers too
            tokens += [*written, *some(rng, 5)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_turns_under_the_rejection_rule(temperature: float) -> None:
    rng = Random(1)
    options = {"speculate": dp.DraftModel(draft(), 4), "rule": "rejection", "max_batch": 1}
    with llm(**options) as without:
        options["speculate"] = dp.DraftModel(draft(), 4)
        with llm(**options, prefix_cache=True) as cached:
            tokens = some(rng, 20)
            for _ in range(3):
                written = tokens_of(cached, tokens, temperature=temperature)
                assert written == tokens_of(without, tokens, temperature=temperature)
                tokens += [*written, *some(rng, 4)]


def test_without_being_asked_nothing_is_remembered() -> None:
    prompt = some(Random(2), 20)
    with llm() as plain:
        read = reading(plain)
        for _ in range(2):
            tokens_of(plain, prompt)
        assert sum(read) == 2 * 19


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KINDS)
def test_a_prompt_that_goes_another_way_is_rolled_back(name: str, method: str) -> None:
    rng = Random(3)
    stem, ends = some(rng, 40), [some(rng, 10) for _ in range(3)]
    drafting = METHODS[method](name)
    with (
        llm(name) as plain,
        llm(name, speculate=drafting, prefix_cache=True, max_batch=1) as cached,
    ):
        read = reading(cached)
        for i in (0, 1, 2, 0):
            prompt = [*stem, *ends[i]]
            del read[:]
            assert tokens_of(cached, prompt) == tokens_of(plain, prompt)
        assert sum(read) == 9
        del read[:]
        assert tokens_of(cached, stem) == tokens_of(plain, stem)  # known whole: nothing to read
        assert sum(read) == 0
        assert tokens_of(cached, stem[:1]) == tokens_of(plain, stem[:1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KINDS)
def test_requests_that_come_and_go_share_what_they_can(name: str, method: str) -> None:
    rng = Random(11)
    stems = [some(rng, 60) for _ in range(2)]
    prompts = [
        [*rng.choice(stems)[: rng.choice([5, 30, 60])], *some(rng, rng.choice([1, 8]))]
        for _ in range(14)
    ]
    each_params = [
        params(temperature=rng.choice([0.0, 1.0]), max_tokens=rng.choice([2, 9, 16]), seed=i)
        for i in range(14)
    ]
    with llm(name, max_batch=1) as plain:
        alone = [
            plain.generate(prompt, one)[0].token_ids
            for prompt, one in zip(prompts, each_params, strict=True)
        ]
    drafting = METHODS[method](name)
    with llm(name, speculate=drafting, prefix_cache=True, max_batch=3) as cached:
        read, present, aborted = reading(cached), [], []
        while len(present) < 14 or not all(each.finished for each in present):
            if len(present) < 14 and rng.random() < 0.3:
                present += cached.submit(prompts[len(present)], each_params[len(present)])
            cached.engine.step()
            running = [each for each in present if not each.finished and each.output]
            if running and rng.random() < 0.1:
                aborted.append(rng.choice(running))
                cached.engine.abort(aborted[-1])
            for runner in runners(cached):
                books_are_right(runner, [each for each in present if not each.finished])
        for each, wanted in zip(present, alone, strict=True):
            assert each.output == (wanted[: len(each.output)] if each in aborted else wanted)
        assert aborted and sum(read) < sum(map(len, prompts)) - 14


@pytest.mark.parametrize("length", [80, 128])
def test_a_deep_draft_ends_no_text_that_may_get_more_room(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is asked for near its end, which a draft may not step over."""
    monkeypatch.setattr("draftproof.memory.OPEN", 100)
    prompt = [5, 6, 7] * 20
    with llm(max_length=700) as plain:
        wanted = tokens_of(plain, prompt, max_tokens=None, ignore_eos=True)
    deep = dp.DraftModel(model(), length, min_confidence=0.0)  # is always right
    with llm(max_length=700, kv_memory="1GB", speculate=deep) as made:
        (one,) = made.generate(prompt, params(max_tokens=None, ignore_eos=True))
    assert one.token_ids == wanted and one.stats.accepted > 400
    assert len(one.token_ids) == 700 - len(prompt)
