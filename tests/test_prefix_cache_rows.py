"""Whose rows the prefix cache may take: the oldest, the idle, what was read to the end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from draftproof.runners.base import Output, Work
from draftproof.runners.torch import TorchRunner
from remembering import METHODS, books_are_right, llm, params, reading, runners, some, tokens_of


def test_the_oldest_is_forgotten_first() -> None:
    rng = Random(4)
    a, b, c = ([first, *some(rng, 30)] for first in (3, 4, 5))
    with llm() as plain, llm(prefix_cache=True, max_batch=2) as cached:
        read = reading(cached)
        for prompt, fresh in ((a, 30), (b, 30), (c, 30), (b, 0), (c, 0), (a, 30), (c, 0), (b, 30)):
            del read[:]
            assert tokens_of(cached, prompt) == tokens_of(plain, prompt)
            assert sum(read) == fresh
            books_are_right(cached.runner, [])


def test_conversations_with_the_same_first_words_keep_their_rows() -> None:
    rng = Random(5)
    first = some(rng, 8)
    talks = [[*first, *some(rng, 50)] for _ in range(2)]
    with llm() as plain, llm(prefix_cache=True, max_batch=2) as cached:
        read = reading(cached)
        for turn in range(3):
            for number, talk in enumerate(talks):  # the second copies the first words
                del read[:]
                written = tokens_of(cached, talk)
                assert written == tokens_of(plain, talk)
                assert sum(read) == ((57, 49)[number] if turn == 0 else 4)
                talk += [*written, *some(rng, 3)]
        # A third one takes the oldest row, which it would get anyway, and what it holds.
        third = [*first, *some(rng, 50)]
        del read[:]
        assert tokens_of(cached, third) == tokens_of(plain, third)
        assert sum(read) == 49


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_taken_by_one_request_only(method: str) -> None:
    prompt = some(Random(6), 30)
    with (
        llm() as plain,
        llm(speculate=METHODS[method]("llama"), prefix_cache=True, max_batch=2) as cached,
    ):
        read = reading(cached)
        wanted = [tokens_of(plain, prompt, temperature=1.0, seed=seed) for seed in range(4)]
        assert tokens_of(cached, prompt, temperature=1.0, seed=0) == wanted[0]
        del read[:]
        outs = cached.generate(
            [prompt] * 4, [params(temperature=1.0, seed=seed) for seed in range(4)]
        )
        assert [out.token_ids for out in outs] == wanted
        # The second one finds the row taken and copies it; those that follow find two rows.
        assert sum(read) == 0


def test_a_running_request_gives_a_copy_and_goes_on() -> None:
    prompt = some(Random(7), 30)
    with llm() as plain, llm(prefix_cache=True, max_batch=2) as cached:
        read = reading(cached)
        (first,) = cached.submit(prompt, params())
        for _ in range(4):
            cached.engine.step()
        (second,) = cached.submit(prompt, params(max_tokens=20))
        while not (first.finished and second.finished):
            cached.engine.step()
            books_are_right(cached.runner, [first, second])
        assert first.output == tokens_of(plain, prompt)
        assert second.output == tokens_of(plain, prompt, max_tokens=20)
        assert sum(read) == 29


def test_an_aborted_prompt_leaves_what_was_read() -> None:
    prompt = some(Random(8), 1100)
    with llm() as plain, llm(prefix_cache=True, max_batch=1) as cached:
        read = reading(cached)
        for known in (512, 1024):
            (request,) = cached.submit(prompt, params())
            cached.engine.step()
            assert cached.runner.cached(request.key) == known and not request.output
            cached.engine.abort(request)
            books_are_right(cached.runner, [])
        assert read == [512, 512]
        assert tokens_of(cached, prompt) == tokens_of(plain, prompt)
        assert sum(read) == 1099


def test_an_interrupted_pass_leaves_only_what_was_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt = some(Random(9), 1100)
    passes, real = [0], TorchRunner.run

    def interrupted(self: TorchRunner, *args: Any, **options: Any) -> Any:
        made = real(self, *args, **options)  # everything was written when the interrupt comes
        passes[0] += 1
        if passes[0] in (2, 3):
            raise KeyboardInterrupt
        return made

    with llm() as plain:
        wanted = tokens_of(plain, prompt)
    with llm(prefix_cache=True, max_batch=1) as cached:
        read = reading(cached)
        monkeypatch.setattr(TorchRunner, "run", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                tokens_of(cached, prompt)
            books_are_right(cached.runner, [])
        assert read == [512, 512, 512]  # the second one began behind the first slice
        del read[:]
        assert tokens_of(cached, prompt) == wanted
        assert sum(read) == 1099 - 512


def test_a_draft_that_fails_gives_its_row_back() -> None:
    rng = Random(10)
    prompts = [some(rng, 600) for _ in range(2)]
    drafting = METHODS["draft"]("llama")
    with llm() as plain:
        wanted = [tokens_of(plain, prompt, max_tokens=30) for prompt in prompts]
    with llm(speculate=drafting, prefix_cache=True, max_batch=3) as cached:
        cached.generate([prompts[0][:50]] * 2, params())  # so that there are rows to take
        requests = [cached.submit(p, params(max_tokens=30))[0] for p in prompts]
        forward, failed = drafting.beside.runner.forward, []

        def once(work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
            if work[0].key == requests[1].key and not failed:
                failed.append(work)
                raise RuntimeError("not now")
            return forward(work, taps)

        drafting.beside.runner.forward = once
        while not all(each.finished for each in requests):
            cached.engine.step()
            for one in runners(cached):
                books_are_right(one, requests)
        assert failed and [each.output for each in requests] == wanted
        assert "not now" in requests[1].warnings[0] and not requests[0].warnings
        assert requests[1].key not in drafting.beside.runner._rows.rows
