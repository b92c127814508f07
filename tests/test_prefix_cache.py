"""What an earlier request cached is read again, and nobody can tell from the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import draftproof as dp
import tiny
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.runners.torch import TorchRunner

KINDS = ["llama", "qwen3"]  # full attention, and a window of 6 in every other layer
DEEPEST = 8  # what NGram drafts at most: so many accepted tokens may not be cached at the end


@cache
def model(name: str = "llama") -> PreTrainedModel:
    return tiny.model(name, dtype=torch.float64, max_position_embeddings=2048)


@cache
def draft(name: str = "llama") -> PreTrainedModel:
    return tiny.relative(model(name))


METHODS: dict[str, Callable[[str], Any]] = {
    "plain": lambda name: None,
    "ngram": lambda name: dp.NGram(DEEPEST, min_ngram=1),
    "draft": lambda name: dp.DraftModel(draft(name), 4, min_confidence=0.0, branch=2),
}


def llm(name: str = "llama", **options: Any) -> dp.LLM:
    return dp.LLM(model(name), **options)


def some(rng: Random, count: int) -> list[int]:
    return [rng.randrange(3, tiny.VOCABULARY) for _ in range(count)]


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 12, "seed": 3, **options})


def tokens_of(llm: dp.LLM, prompt: Sequence[int], **options: Any) -> list[int]:
    return llm.generate([*prompt], params(**options))[0].token_ids


def reading(llm: dp.LLM) -> list[int]:
    """Grows, with every pass of the target, by the committed tokens that it is given to read."""
    read, forward = [], llm.runner.forward

    def spy(work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
        read.append(sum(len(item.new) for item in work))
        return forward(work, taps)

    llm.runner.forward = spy  # type: ignore[method-assign]
    return read


def runners(llm: dp.LLM) -> list[TorchRunner]:
    """The target's, and the draft's if there is one."""
    beside = getattr(llm.engine.proposer, "beside", None)
    return [llm.runner, *([beside.runner] if beside else [])]


def books_are_right(runner: TorchRunner, requests: Sequence[Request]) -> None:
    """No row is lost or had by two, and the runner knows what its rows hold."""
    runner.check([each.key for each in requests])
    for each in requests:
        if each.key in runner._tokens:
            length = runner.cached(each.key)
            assert list(runner._tokens[each.key][:length]) == each.tokens[:length]


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
            for talk in talks:
                del read[:]
                written = tokens_of(cached, talk)
                assert written == tokens_of(plain, talk)
                assert sum(read) == (57 if turn == 0 else 4)
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
        # The second one finds the row taken; those that follow find the rows of the first two.
        assert read[0] == 29 and sum(read) == 29


def test_a_running_request_lends_nothing() -> None:
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
        assert sum(read) == 2 * 29


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
