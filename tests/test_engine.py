"""The loop: who joins, leaves, fails; what is committed; what a bad drafter cannot do.

Most of it runs on a fake runner over a Markov table, which keeps its own books: the seam must not
care what computes logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import draftproof as dp
import tiny
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.scheduler import Scheduler
from draftproof.tree import TokenTree
from fakes import Table, V, Wild, books_are_right, request, run


def solo(each: Request, seed: int = 0) -> list[int]:
    """What a request like `each` writes alone, without drafts."""
    made = Request(each.key, each.prompt, each.params, seed=each.seed, max_length=each.max_length)
    made.stop_ids = set(each.stop_ids)
    run(Engine(Table(seed), scheduler=Scheduler(1)), [made])
    return made.output


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


# --- ends inside a draft ---


class Prophet(Wild):
    """Drafts what plain decoding is known to write, `length` tokens of it."""

    def __init__(self, futures: dict[int, list[int]], length: int = 6) -> None:
        super().__init__(0)
        self.futures, self.length = futures, length

    def grow(self, request: Request) -> TokenTree:
        done = len(request.output)
        ahead = self.futures[request.key][done : done + self.length]
        return TokenTree.chain([request.tokens[-1], *ahead])


def prophecy(each: Request, **changes: Any) -> tuple[Request, list[int]]:
    long = request(each.key, each.prompt, each.seed, temperature=1.0, max_tokens=60)
    return each, solo(long)


@pytest.mark.parametrize("max_tokens", range(1, 15))
def test_max_tokens_inside_a_draft(max_tokens: int) -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_tokens=max_tokens))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    assert each.output == future[:max_tokens] and each.finish_reason == "length"
    stats = each.stats
    assert stats.tokens == max_tokens
    assert stats.steps == -(-max_tokens // 7)
    assert stats.accepted == max_tokens - stats.steps  # accepted + 1 tokens a step
    assert sum(each.from_draft) == stats.accepted


@pytest.mark.parametrize("length", range(3, 16))
def test_max_length_inside_a_draft(length: int) -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_length=length))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    assert each.output == future[: length - 2] and each.finish_reason == "length"


def test_end_of_text_inside_a_draft() -> None:
    _, future = prophecy(request(0, [1, 2], 5))
    for end in set(future[:15]):
        at = future.index(end)
        each = request(0, [1, 2], 5, temperature=1.0, max_tokens=60, end_ids=(end,))
        run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
        assert each.output == future[: at + 1] and each.finish_reason == "stop"
        assert each.stats.tokens == at + 1 == len(each.from_draft)
        # the step in which it ended counts what was written, not what was drafted after it
        assert each.stats.accepted == sum(each.from_draft) <= at + 1
        assert len(each.stats.accepted_per_position) <= 6


def test_stats_of_a_perfect_draft() -> None:
    each, future = prophecy(request(0, [1, 2], 5, temperature=1.0, max_tokens=21))
    run(Engine(Table(), Prophet({0: future}), scheduler=Scheduler(1)), [each])
    stats = each.completion().stats
    assert (stats.steps, stats.drafting_steps, stats.drafted, stats.accepted) == (3, 3, 18, 18)
    assert stats.accepted_per_position == [3] * 6
    assert stats.tokens_per_step == 7 and stats.acceptance_length == 7
    assert each.from_draft == ([True] * 6 + [False]) * 3


def test_stats_of_plain_decoding() -> None:
    each = request(0, [1, 2], 5, max_tokens=9)
    run(Engine(Table(), scheduler=Scheduler(1)), [each])
    stats = each.completion().stats
    assert (stats.steps, stats.drafted, stats.accepted) == (9, 0, 0)
    assert stats.tokens_per_step == 1 and stats.acceptance_length == 1
    assert stats.began <= stats.first_token <= stats.ended


# --- what fails, and who survives it ---


class Failing(Prophet):
    """Raises for `victim` from its third step on, and for a batch that holds it."""

    def __init__(self, futures: dict[int, list[int]], victim: int) -> None:
        super().__init__(futures, 2)
        self.victim = victim

    def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
        for each in requests:
            if each.key == self.victim and len(each.output) > 5:
                raise RuntimeError("the draft broke")
        return super().propose(requests)


def test_a_draft_that_fails_costs_its_request_the_drafts_and_no_token() -> None:
    pairs = [prophecy(request(key, [key], key, temperature=1.0, max_tokens=30)) for key in range(4)]
    futures = {each.key: future for each, future in pairs}
    requests = [each for each, _ in pairs]
    run(Engine(Table(), Failing(futures, 2), scheduler=Scheduler(4)), requests)
    for each in requests:
        assert each.output == futures[each.key][:30] and each.finish_reason == "length"
        if each.key == 2:
            (warning,) = each.completion().warnings
            assert "the draft broke" in warning
            assert each.stats.drafting_steps == 2
        else:
            assert each.completion().warnings == [] and each.stats.drafting_steps == 10


NONSENSE: dict[str, Callable[[Request], Any]] = {
    "nothing": lambda request: None,
    "no tree": lambda request: [1, 2, 3],
    "another root": lambda request: TokenTree.chain([(request.tokens[-1] + 1) % V, 1, 2]),
    "token beyond the vocabulary": lambda request: TokenTree.chain([request.tokens[-1], 1, V]),
    "negative token": lambda request: TokenTree.chain([request.tokens[-1], -1]),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_from_a_drafter_does_not_change_the_output(what: str) -> None:
    class Liar(Wild):
        def grow(self, request: Request) -> TokenTree:
            good = super().grow(request)
            return NONSENSE[what](request) if request.key == 1 else good

    requests = [request(key, [key + 1], key, temperature=1.0) for key in range(3)]
    engine = Engine(Table(), Liar(0, Table()), scheduler=Scheduler(3), vocabulary=V)
    run(engine, requests)
    for each in requests:
        assert each.finish_reason == "length" and each.output == solo(each)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_or_too_many_trees_do_not_change_the_output(count: int) -> None:
    class Miscount(Wild):
        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            return [self.grow(requests[0])] * count

    requests = [request(key, [key + 1], key, temperature=1.0) for key in range(2)]
    run(Engine(Table(), Miscount(0, Table()), scheduler=Scheduler(3)), requests)
    for each in requests:
        assert each.finish_reason == "length" and each.output == solo(each)


def test_a_proposer_needs_only_taps_and_propose() -> None:
    bare = SimpleNamespace(
        taps=(), propose=lambda requests: [TokenTree.chain([r.tokens[-1], 1]) for r in requests]
    )
    each = request(0, [1], temperature=1.0)
    run(Engine(Table(), bare, scheduler=Scheduler(1)), [each])
    assert each.output == solo(each)


def test_a_release_that_raises_is_not_swallowed_into_a_stuck_row() -> None:
    class Clumsy(Wild):
        def release(self, request: Request) -> None:
            raise RuntimeError("cannot let go")

    runner = Table()
    engine = Engine(runner, Clumsy(0), scheduler=Scheduler(1))
    first, second = request(0, [1], max_tokens=1), request(1, [2], max_tokens=1)
    for each in (first, second):
        engine.add(each)
    for _ in range(4):
        try:
            engine.step()
        except RuntimeError as error:
            assert "cannot let go" in str(error)
    assert first.finished and second.finished and runner.committed == {}


def test_nan_ends_its_own_request_only() -> None:
    runner = Table(poison=lambda key, length: key == 1 and length >= 8)
    requests = [request(key, [key + 1, 2], key, temperature=1.0) for key in range(3)]
    run(Engine(runner, Wild(1, runner), scheduler=Scheduler(3)), requests)
    bad = requests[1].completion()
    assert bad.finish_reason == "error" and bad.error
    assert bad.token_ids == solo(requests[1])[: len(bad.token_ids)]
    assert len(bad.token_ids) <= 6
    for each in (requests[0], requests[2]):
        assert each.finish_reason == "length" and each.output == solo(each)
    assert runner.committed == {}


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_under_either_rule(rule: str, temperature: float) -> None:
    runner = Table(poison=lambda key, length: key == 0 and length >= 4)
    requests = [
        Request(
            key,
            [1],
            dp.SamplingParams(temperature=temperature, max_tokens=9),
            seed=key,
            rule=rule,
        )
        for key in range(2)
    ]
    run(Engine(runner, rule=rule, scheduler=Scheduler(2)), requests)
    assert requests[0].finish_reason == "error" and len(requests[0].output) == 3
    assert requests[1].finish_reason == "length" and len(requests[1].output) == 9


def test_nan_with_logprobs() -> None:
    runner = Table(poison=lambda key, length: key == 0 and length >= 4)
    requests = [request(key, [1], key, max_tokens=9, logprobs=2) for key in range(2)]
    run(Engine(runner, scheduler=Scheduler(2)), requests)
    assert [each.finish_reason for each in requests] == ["error", "length"]
    assert len(requests[0].completion().logprobs) == len(requests[0].output)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_candidate_left_ends_its_own_request_only(temperature: float) -> None:
    every = tuple(range(V))
    requests = [
        request(0, [1], 1, temperature=temperature, bad_token_ids=every),
        request(1, [1], 1, temperature=temperature),
    ]
    run(Engine(Table(), Wild(0, Table()), scheduler=Scheduler(2)), requests)
    assert requests[0].finish_reason == "error" and requests[0].output == []
    assert requests[0].completion().error
    assert requests[1].finish_reason == "length" and requests[1].output == solo(requests[1])


def test_a_runner_that_raises_leaves_the_engine_usable() -> None:
    class Breaking(Table):
        broken = False

        def forward(self, work: Sequence[Work], taps: tuple[int, ...] = ()) -> list[Output]:
            if self.broken:
                raise MemoryError("no room")
            return super().forward(work, taps)

    runner = Breaking()
    engine = Engine(runner, Wild(0, runner), scheduler=Scheduler(2))
    each = request(0, [1, 2, 3], temperature=1.0)
    engine.add(each)
    engine.step()
    runner.broken = True
    written = each.output
    assert engine.step() == [each]
    assert (each.finish_reason, each.error, each.output) == ("error", "no room", written)
    engine.check()
    runner.broken = False
    again = request(1, [1, 2, 3], temperature=1.0)
    run(engine, [again])
    assert again.output == solo(again) and written == again.output[: len(written)]


def test_abort_is_idempotent_and_keeps_what_was_written() -> None:
    runner = Table()
    engine = Engine(runner, scheduler=Scheduler(1))
    first, waiting = request(0, [1]), request(1, [2])
    for each in (first, waiting):
        engine.add(each)
    for _ in range(3):
        engine.step()
    for _ in range(2):
        engine.abort(first)
        engine.abort(waiting)
    assert (first.finish_reason, waiting.finish_reason) == ("abort", "abort")
    assert first.output == solo(first)[:3] and waiting.output == []
    assert runner.committed == {}
    assert engine.step() == [first, waiting] and engine.step() == []
    done = request(2, [3], max_tokens=1)
    run(engine, [done])
    engine.abort(done)
    assert done.finish_reason == "length"


@pytest.mark.parametrize("end", ["length", "abort"])
def test_a_request_that_has_ended_holds_no_noise(end: str) -> None:
    """It is megabytes, and a list of thousands of finished requests would hold it."""
    engine = Engine(Table(), scheduler=Scheduler(1))
    one = request(0, [1, 2], temperature=1.0, max_tokens=5)
    engine.add(one)
    engine.step()
    engine.step()
    one.noise.gumbel(50, V)
    assert one.noise._kept
    if end == "abort":
        engine.abort(one)
    else:
        run(engine, [one])
    assert one.finish_reason == end and not one.noise._kept


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="greedy"):
        Engine(Table(), rule="greedy", scheduler=Scheduler(1))


def test_feedback_tells_what_the_last_step_did() -> None:
    seen = []

    class Curious(Wild):
        def propose(self, requests: Sequence[Request]) -> list[TokenTree]:
            for each in requests:
                if each.feedback is not None:
                    feedback = each.feedback
                    tail = [feedback.tree.tokens[i] for i in feedback.path]
                    seen.append(tail)
                    assert each.tokens[-1 - len(tail) : -1] == tail
                    assert feedback.tree.path(feedback.path[-1]) == list(feedback.path)
            return super().propose(requests)

    runner = Table()
    requests = [request(key, [key], max_tokens=40) for key in range(3)]
    run(Engine(runner, Curious(0, runner), scheduler=Scheduler(2)), requests)
    assert max(map(len, seen)) > 2


# --- the same on a real model ---


def real(**options: Any) -> dp.LLM:
    model = tiny.model("qwen3", dtype=torch.float64, max_position_embeddings=2048)
    return dp.LLM(model, **options)


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
    with real(max_batch=2, speculate="ngram") as llm:
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
