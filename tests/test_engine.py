"""The loop: who joins and leaves, what a step reads, what is committed.

Most of it runs on a fake runner over a Markov table, which keeps its own books: the seam must not
care what computes logits.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from fakes import Table, V, Wild, books_are_right, request, run
from prophets import solo


def some_requests(rng: Random, count: int) -> list[Request]:
    made = []
    for key in range(count):
        prompt = [rng.randrange(V) for _ in range(rng.choice([1, 2, 9, 30]))]
        options = {
            "temperature": rng.choice([0.0, 0.8, 1.5]),
            "max_tokens": rng.choice([1, 2, 7, 25]),
            "top_k": rng.choice([0, 4]),
            "presence_penalty": rng.choice([0.0, 0.7]),
            "max_length": len(prompt) + rng.choice([1, 5, 100]),
            "end_ids": rng.choice([(), (5,)]),
        }
        made.append(request(key, prompt, seed=rng.randrange(2**63), **options))
    return made


# --- the seam ---


@pytest.mark.parametrize("seed", range(12))
def test_whatever_joins_leaves_and_is_drafted_a_request_writes_what_it_writes_alone(
    seed: int,
) -> None:
    rng = Random(seed)
    runner = Table()
    proposer = Wild(seed, runner)
    engine = Engine(
        runner, proposer, scheduler=Scheduler(rng.randint(1, 5), rng.choice([1, 4, 512]))
    )
    coming = some_requests(rng, 12)
    present: list[Request] = []
    aborted = set()
    for _ in range(3000):
        if coming and rng.random() < 0.4:
            present.append(coming.pop())
            engine.add(present[-1])
        if present and rng.random() < 0.03:
            chosen = rng.choice(present)
            if not chosen.finished:
                aborted.add(chosen.key)
            engine.abort(chosen)
        engine.step()
        books_are_right(runner, present)
        assert len(runner.committed) <= engine.scheduler.max_batch
        if not coming and all(each.finished for each in present):
            break
    assert not coming and all(each.finished for each in present)
    assert runner.committed == {} and runner.scratch == {}
    for each in present:
        if each.key in aborted:
            assert each.finish_reason == "abort"
            assert each.output == solo(each)[: len(each.output)]
        else:
            assert each.output == solo(each)
            assert each.finish_reason in ("stop", "length")
    released = [each.key for each in proposer.released]
    assert set(released) == {each.key for each in present}


def test_an_idle_engine_steps_without_a_pass() -> None:
    engine = Engine(Table(), scheduler=Scheduler(2))
    assert list(engine.step()) == []
    assert engine.runner.passes == []


def test_step_returns_those_that_wrote() -> None:
    engine = Engine(Table(), scheduler=Scheduler(2, 4))
    short, long = request(0, [1, 2], max_tokens=2), request(1, [3] * 10, max_tokens=1)
    engine.add(short)
    engine.add(long)
    wrote = [sorted(each.key for each in engine.step()) for _ in range(4)]
    assert wrote[0] == [0]  # the long prompt is still read
    assert short.finished and [1] in wrote and long.finished


def test_a_free_place_is_filled_at_once_in_order_of_arrival() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(2))
    requests = [request(key, [key], max_tokens=1 + 2 * (key == 0)) for key in range(4)]
    for each in requests:
        engine.add(each)
    while not all(each.finished for each in requests):
        engine.step()
    assert [sorted(one) for one in runner.passes] == [[0, 1], [0, 2], [0, 3]]


def test_a_long_prompt_is_read_in_slices_while_others_keep_writing() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(3, 64))
    writer, reader = request(0, [1], max_tokens=30), request(1, [2] * 1000, max_tokens=4)
    engine.add(writer)
    engine.step()
    engine.add(reader)
    while not reader.output:
        before = len(writer.output)
        engine.step()
        assert writer.finished or len(writer.output) == before + 1
        books_are_right(runner, [writer, reader])
    sizes = [one[1] for one in runner.passes if 1 in one]
    assert max(sizes) <= 64 + 1 and sum(sizes[:-1]) >= 999 - 64 and len(sizes) >= 16


def test_the_default_budget_splits_a_prompt_of_more_than_512_tokens() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(2))
    run(engine, [request(0, [1] * 1500, max_tokens=2)])
    assert max(one[0] for one in runner.passes) <= 513 and len(runner.passes) >= 4


def test_only_the_slices_a_budget_has_room_for_are_run() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(4, 10))
    requests = [request(key, [key] * 25, max_tokens=3) for key in range(4)]
    run(engine, requests)
    for one in runner.passes:
        assert sum(size for size in one.values() if size > 1) <= 10 + len(one)
    for each in requests:
        assert each.output == solo(each)


def test_no_node_stands_where_no_token_may_follow() -> None:
    class Deep(Wild):
        def grow(self, request: Request) -> TokenTree:
            return TokenTree.chain([request.tokens[-1], *[1] * 50])

    runner = Table()
    each = request(0, [1, 2, 3], max_tokens=100, max_length=9)
    engine = Engine(runner, Deep(0), scheduler=Scheduler(1))
    engine.add(each)
    while not each.finished:
        at = len(each.tokens) - 1  # position of node 0
        engine.step()
        tree_size = runner.passes[-1][0] - (at if len(runner.passes) == 1 else 0)
        assert at + tree_size - 1 < 9 - 1 or tree_size == 1
    assert len(each.tokens) == 9 and each.finish_reason == "length"


# --- the same on a real model ---


def real(**options: Any) -> dp.LLM:
    model = tiny.model("qwen3", dtype=torch.float64, max_position_embeddings=2048)
    return dp.LLM(model, **{"speculate": None, **options})


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_requests_that_come_and_go_write_what_they_write_alone(method: str) -> None:
    rng = Random(0)
    relative = tiny.relative(tiny.model("qwen3", dtype=torch.float64, max_position_embeddings=2048))
    made = {
        "ngram": dp.NGram(min_ngram=1),
        "draft": dp.DraftModel(relative, 4, min_confidence=0.0, branch=2),
    }
    prompts = [[rng.randrange(3, 97) for _ in range(rng.choice([1, 4, 20, 60]))] for _ in range(9)]
    prompts[4] = [rng.randrange(3, 97) for _ in range(700)]
    params = [
        dp.SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            max_tokens=rng.choice([3, 12, 20]),
            seed=i,
            ignore_eos=True,
        )
        for i in range(9)
    ]
    with real(max_batch=1) as llm:
        alone = [llm.generate(p, q)[0].token_ids for p, q in zip(prompts, params, strict=True)]
    with real(max_batch=3, speculate=made[method]) as llm:
        waiting, present = list(range(9)), {}
        aborted = None
        while waiting or not all(each.finished for each in present.values()):
            if waiting and rng.random() < 0.5:
                i = waiting.pop(0)
                (present[i],) = llm.submit(prompts[i], params[i])
            llm.engine.step()
            if aborted is None and 5 in present and present[5].output:
                aborted = present[5]
                llm.engine.abort(aborted)
            for each in present.values():
                if not each.finished and each.output:
                    assert llm.runner.cached(each.key) == len(each.tokens) - 1
        for i, each in present.items():
            if each is aborted:
                assert each.output == alone[i][: len(each.output)]
            else:
                assert each.output == alone[i], i


def test_a_prompt_of_1100_tokens_while_another_request_writes() -> None:
    rng = Random(1)
    long = [rng.randrange(3, 97) for _ in range(1100)]
    with real(max_batch=2, speculate="ngram", itl_target=1e6) as llm:
        plain = real(max_batch=1)
        (writer,) = llm.submit([5, 6, 7], dp.SamplingParams(max_tokens=40, ignore_eos=True))
        llm.engine.step()
        (reader,) = llm.submit(long, dp.SamplingParams(max_tokens=5, ignore_eos=True))
        steps = 0
        while not reader.output:
            before = len(writer.output)
            llm.engine.step()
            steps += 1
            assert len(writer.output) > before
        assert steps == 3
        while not (writer.finished and reader.finished):
            llm.engine.step()
        for each in (writer, reader):
            assert each.output == plain.generate(each.prompt, each.params)[0].token_ids
